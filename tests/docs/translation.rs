//! The README in Chinese says what the README says: the same headings, parts, code blocks, links, code and figures,
//! section by section. Whether the sentences mean the same is not compared.

use std::fs;

use super::{Block, blocks, links, root};

const ORIGINAL: &str = "README.md";
const TRANSLATION: &str = "README.zh-CN.md";
/// What to do about a difference.
const ADVICE: &str = "README.zh-CN.md is README.md in Chinese: change both in the same commit. Copy code blocks, \
                      link targets, `code` and figures unchanged, and translate the sentences around them.";
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

#[test]
fn the_readme_in_chinese_is_in_step_with_the_readme() {
    let read = |name: &str| fs::read_to_string(root().join(name)).expect(name);
    let (original, translation) = (read(ORIGINAL), read(TRANSLATION));
    for (page, name, other) in
        [(&original, ORIGINAL, TRANSLATION), (&translation, TRANSLATION, ORIGINAL)]
    {
        let first = page.lines().next().unwrap_or_default();
        assert!(first.contains(&format!("({other})")), "{name}: no link to {other} in line 1");
    }
    let found = differences(&original, &translation);
    assert!(found.is_empty(), "\n{}\n{ADVICE}", found.join("\n"));
}

/// A heading, and what is below it up to the next heading.
#[derive(Debug, Default)]
struct Section {
    /// The heading's line; empty above the first.
    heading: String,
    /// `paragraph`, `table of N lines`, `list of N items` and `code block`, in order.
    parts: Vec<String>,
    blocks: Vec<Block>,
    /// Targets, without that of the other language.
    links: Vec<String>,
    /// Inline code, sorted: the order of words differs between languages.
    code: Vec<String>,
    /// Numbers outside of code blocks and link targets, sorted. Months are numbers, too.
    figures: Vec<String>,
}

impl Section {
    fn new(heading: &str, body: &str) -> Section {
        let prose = prose(&format!("{heading}\n{body}"));
        let of_page = links(&prose).filter(|link| ![ORIGINAL, TRANSLATION].contains(link));
        let links = of_page.map(str::to_owned).collect();
        let spans = prose.split('`').skip(1).step_by(2);
        let mut code: Vec<String> = spans.map(|span| span.replace('\n', " ")).collect();
        let mut figures = figures(&prose);
        code.sort();
        figures.sort();
        let heading = heading.to_owned();
        Section { heading, parts: parts(body), blocks: blocks(body), links, code, figures }
    }

    /// The number of `#`.
    fn level(&self) -> usize {
        self.heading.len() - self.heading.trim_start_matches('#').len()
    }
}

/// What a translation has other than its original, one line each.
fn differences(original: &str, translation: &str) -> Vec<String> {
    let (original, translation) = (sections(original), sections(translation));
    let pairs = original.iter().zip(&translation);
    let mut found = pairs.map(|(a, b)| differences_of_sections(a, b)).filter(|of| !of.is_empty());
    for nth in 0..original.len().max(translation.len()) {
        let levels = [original.get(nth), translation.get(nth)].map(|s| s.map(Section::level));
        if levels[0] != levels[1] {
            let [expected, actual] = [original.get(nth), translation.get(nth)]
                .map(|section| section.map_or("nothing", |section| section.heading.as_str()));
            let headings = format!(
                "headings differ: heading {nth} should be that of {expected:?}, found {actual:?}"
            );
            // Behind a heading too many or too few all differ. The first that does shows where it is.
            return [headings].into_iter().chain(found.next().unwrap_or_default()).collect();
        }
    }
    found.flatten().collect()
}

fn differences_of_sections(original: &Section, translation: &Section) -> Vec<String> {
    let mut found = Vec::new();
    let lists = [
        ("parts", &original.parts, &translation.parts),
        ("links", &original.links, &translation.links),
        ("inline code", &original.code, &translation.code),
        ("figures", &original.figures, &translation.figures),
    ];
    for (what, expected, actual) in lists {
        if expected != actual {
            let (lacking, extra) = (without(expected, actual), without(actual, expected));
            found.push(match (lacking.is_empty(), extra.is_empty()) {
                (true, true) => format!("{what}: expected in order {expected:?}, found {actual:?}"),
                (false, true) => format!("{what}: lacking {lacking:?}"),
                (true, false) => format!("{what}: too many {extra:?}"),
                (false, false) => format!("{what}: expected {lacking:?}, found {extra:?}"),
            });
        }
    }
    for (nth, (expected, actual)) in original.blocks.iter().zip(&translation.blocks).enumerate() {
        let nth = nth + 1;
        if expected.language != actual.language {
            let (expected, actual) = (&expected.language, &actual.language);
            found.push(format!("code block {nth}: language {expected:?}, found {actual:?}"));
        }
        if expected.text != actual.text {
            let lines = [&expected.text, &actual.text].map(|text| text.lines().collect::<Vec<_>>());
            let line = (0..).find(|line| lines[0].get(*line) != lines[1].get(*line)).unwrap_or(0);
            let [expected, actual] =
                lines.map(|lines| lines.get(line).copied().unwrap_or("its end").to_owned());
            let line = line + 1;
            found.push(format!(
                "code block {nth}, line {line}: expected {expected:?}, found {actual:?}"
            ));
        }
    }
    let place = format!("{:?} (of {:?})", translation.heading, original.heading);
    found.into_iter().map(|difference| format!("{place}: {difference}")).collect()
}

/// The items of a list that another lacks, as often as it lacks them.
fn without(list: &[String], other: &[String]) -> Vec<String> {
    let mut left = list.to_vec();
    for item in other {
        if let Some(at) = left.iter().position(|of| of == item) {
            left.remove(at);
        }
    }
    left
}

/// The sections of a page, the first without a heading.
fn sections(page: &str) -> Vec<Section> {
    let (mut sections, mut heading, mut body) = (Vec::new(), "", String::new());
    let mut in_code = false;
    for line in page.lines() {
        in_code ^= is_fence(line);
        let title = line.trim_start_matches('#');
        if !in_code && title.len() < line.len() && title.starts_with(' ') {
            sections.push(Section::new(heading, &body));
            (heading, body) = (line, String::new());
        } else {
            body += &format!("{line}\n");
        }
    }
    sections.push(Section::new(heading, &body));
    sections
}

fn is_fence(line: &str) -> bool {
    line.trim_start().starts_with("```")
}

/// A text without its code blocks.
fn prose(text: &str) -> String {
    let mut in_code = false;
    let is_prose = |line: &&str| {
        in_code ^= is_fence(line);
        !in_code && !is_fence(line)
    };
    text.lines().filter(is_prose).map(|line| format!("{line}\n")).collect()
}

/// The kinds of what is in a section, with the sizes of tables and lists; comments are none.
fn parts(body: &str) -> Vec<String> {
    let (mut parts, mut in_code): (Vec<(&str, usize)>, bool) = (Vec::new(), false);
    let mut is_new = true;
    for line in body.lines() {
        let was_code = in_code;
        in_code ^= is_fence(line);
        if was_code {
            is_new = true;
            continue;
        }
        let kind = match line {
            _ if in_code => "code block",
            _ if line.starts_with("<!--") => continue,
            _ if line.trim().is_empty() => {
                is_new = true;
                continue;
            }
            _ if line.starts_with('|') => "table",
            _ if line.starts_with("- ") => "list",
            _ => "paragraph",
        };
        match parts.last_mut() {
            // A line that continues an item, or a paragraph.
            Some(("list" | "paragraph", _)) if !is_new && kind == "paragraph" => {}
            Some((last, size)) if !is_new && *last == kind => *size += 1,
            _ => parts.push((kind, 1)),
        }
        is_new = false;
    }
    let named = |(kind, size): (&str, usize)| match kind {
        "table" => format!("table of {size} lines"),
        "list" => format!("list of {size} items"),
        _ => kind.to_owned(),
    };
    parts.into_iter().map(named).collect()
}

/// The numbers in a text, without those in the targets of its links.
fn figures(prose: &str) -> Vec<String> {
    let targets = prose.split("](").enumerate().map(|(nth, part)| match part.split_once(')') {
        Some((_, after)) if nth > 0 => after,
        _ => part,
    });
    let mut text = targets.collect::<Vec<_>>().join(" ");
    for (month, number) in MONTHS.iter().zip(1..) {
        // With its year: "may" is a word, too.
        text = text.replace(&format!("{month} 20"), &format!("{number} 20"));
    }
    let numbers = text.split(|c: char| !c.is_ascii_digit() && c != ',' && c != '.');
    let numbers = numbers.map(|number| number.trim_matches([',', '.']));
    numbers.filter(|number| !number.is_empty()).map(str::to_owned).collect()
}

const ENGLISH: &str = "# Tool · [中文](README.zh-CN.md)\n\nIt held 1,000 sockets, 2.5 MB\neach (2 May 2026), see\n[how](a.md).\n\n\
    ```\n$ tool --all\n# no heading\n```\n\n## Compared\n\n| a | b |\n|---|---|\n| `x` | 3 × |\n\n- [One](b.md)\n  and `y`\n- [Two](c.md#d4)\n";
const CHINESE: &str = "# 工具 · [English](README.md)\n\n2026 年 5 月 2 日，它保持了 1,000 条连接，每条 2.5 MB（[方法](a.md)）。\n\n\
    ```\n$ tool --all\n# no heading\n```\n\n## 比较\n\n| 甲 | 乙 |\n|---|---|\n| `x` | 3 倍 |\n\n- [一](b.md)和 `y`\n- [二](c.md#d4)\n";

#[test]
fn a_translation_in_step_has_no_difference() {
    assert_eq!(differences(ENGLISH, CHINESE), [""; 0]);
    let first = &sections(ENGLISH)[1];
    assert_eq!(first.parts, ["paragraph", "code block"]);
    assert_eq!(first.figures, ["1,000", "2", "2.5", "2026", "5"]);
    assert_eq!(first.links, ["a.md"], "without the other language");
    let second = &sections(ENGLISH)[2];
    assert_eq!(second.parts, ["table of 3 lines", "list of 2 items"]);
    assert_eq!(second.code, ["x", "y"]);
}

/// Each change of one page alone is found, under its heading.
#[test]
fn a_change_of_one_page_alone_is_found() {
    let changes = [
        ("\n## 比较\n", "\n### 比较\n", "headings differ", "### 比较"),
        ("\n## 比较\n", "\n", "headings differ", "## Compared"),
        ("--all\n", "--any\n", "code block 1, line 1", "$ tool --any"),
        ("heading\n```", "heading\nmore\n```", "code block 1, line 3", "more"),
        ("```\n$", "```sh\n$", "code block 1: language", "sh"),
        ("| `x` | 3 倍 |\n", "| `x` | 3 倍 |\n| 丙 | 丁 |\n", "parts", "table of 4 lines"),
        ("\n- [二]", "；[二]", "parts", "list of 1 items"),
        ("\n\n```\n$", "\n\n多一段。\n\n```\n$", "parts", "paragraph"),
        ("(a.md)", "(z.md)", "links", "a.md"),
        ("[一](b.md)", "一", "links", "b.md"),
        ("`y`", "`z`", "inline code", "y"),
        ("1,000", "1,001", "figures", "1,001"),
        ("5 月", "6 月", "figures", "6"),
        ("3 倍", "许多倍", "figures", "3"),
    ];
    for (from, to, what, detail) in changes {
        let changed = CHINESE.replacen(from, to, 1);
        assert_ne!(changed, CHINESE, "{from}");
        let found = differences(ENGLISH, &changed).join("\n");
        assert!(found.contains(what) && found.contains(detail), "{from} → {to}: {found:?}");
        let title = if from.contains("比较") || CHINESE.find(from) > CHINESE.find("## 比较") {
            "Compared"
        } else {
            "# Tool"
        };
        assert!(found.contains(title), "{from} → {to}: no heading: {found:?}");
    }
    let more = ENGLISH.replace("\n## Compared", "\n## New\n\nText.\n\n## Compared");
    let found = differences(&more, CHINESE).join("\n");
    assert!(found.contains("heading 3") && found.contains("(of \"## New\")"), "{found:?}");
    let swapped = CHINESE.replace("b.md", "?").replace("c.md#d4", "b.md").replace('?', "c.md#d4");
    let found = differences(ENGLISH, &swapped);
    assert!(found.len() == 1 && found[0].contains("links: expected in order"), "{found:?}");
}
