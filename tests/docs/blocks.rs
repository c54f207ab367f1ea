//! The code blocks of a page.

/// A fenced block.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// The word behind the fence; empty without one.
    pub(super) language: String,
    /// The file that the reader saves it as: the paragraph above ends with its name, "Save as `app.mjs`:".
    pub(super) file: Option<String>,
    /// The URL that the reader opens in a browser before: "Open <URL> …" above.
    pub(super) opens: Option<String>,
    pub(super) text: String,
}

impl Block {
    /// Whether it contains commands. Blocks without a language are for shells, too.
    pub(super) fn is_shell(&self) -> bool {
        ["", "sh", "bash", "shell", "console"].contains(&self.language.as_str())
    }

    /// The commands of a shell, continuation lines joined. Where some have a prompt the other lines are output.
    pub(super) fn commands(&self) -> Vec<String> {
        let text = self.text.replace("\\\n", " ");
        let prompted = text.lines().any(|line| line.starts_with("$ "));
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        match prompted {
            true => lines.filter_map(|line| line.strip_prefix("$ ")).map(str::to_owned).collect(),
            false => lines.filter(|line| !line.starts_with('#')).map(str::to_owned).collect(),
        }
    }
}

/// The blocks of a page in their order.
pub(super) fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    let mut above = "";
    let mut opens = None;
    for line in page.lines() {
        let fence = line.trim_start().strip_prefix("```");
        match (fence, &mut open) {
            (Some(language), None) => {
                let language = language.trim().to_owned();
                let (file, opens) = (file_name(above), opens.take());
                open = Some(Block { language, file, opens, text: String::new() });
            }
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (None, Some(block)) => block.text += &format!("{line}\n"),
            (None, None) if !line.trim().is_empty() => {
                above = line;
                let url = line.strip_prefix("Open <").and_then(|rest| rest.split_once('>'));
                opens = url.map(|(url, _)| url.to_owned()).or(opens);
            }
            (None, None) => {}
        }
        if fence.is_some() {
            above = "";
        }
    }
    assert!(open.is_none(), "a block is not closed: {open:?}");
    blocks
}

/// The name in a line that ends with "`name.extension`:".
fn file_name(line: &str) -> Option<String> {
    let (_, name) = line.strip_suffix("`:")?.rsplit_once('`')?;
    (name.contains('.') && !name.contains([' ', '/'])).then(|| name.to_owned())
}

#[test]
fn blocks_have_their_language_and_file() {
    let page = "Save as `a.mjs`:\n\n```js\nx\n```\n`b.mjs` is:\n```sh\n$ a \\\n  b\nout\n$ c\n```\nOpen <http://a/> now.\nYes.\n```\n# no\nd\n```\n";
    let found = blocks(page);
    let files: Vec<_> = found.iter().map(|block| block.file.as_deref()).collect();
    assert_eq!(files, [Some("a.mjs"), None, None]);
    assert_eq!(found[2].opens.as_deref(), Some("http://a/"));
    assert!(found[0].opens.is_none() && found[1].opens.is_none());
    assert_eq!(found[0].text, "x\n");
    assert!(!found[0].is_shell() && found[1].is_shell() && found[2].is_shell());
    assert_eq!(found[1].commands(), ["a    b", "c"]);
    assert_eq!(found[2].commands(), ["d"]);
}
