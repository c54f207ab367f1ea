//! Templates: values, escapes, lists, and errors.

use std::collections::BTreeSet;

use super::*;

fn names() -> Names {
    let people = Feed::from_csv("people", b"name,age\nAnn,31\n\"B \"\"b\"\"\r\nX: y\",32\n");
    Names {
        variables: BTreeMap::from([("plan".to_owned(), "a b".to_owned())]),
        feeds: vec![Arc::new(people.unwrap())],
        captures: vec!["token".to_owned(), "items".to_owned()],
        lists: BTreeSet::from(["items".to_owned()]),
    }
}

fn rendered(text: &str, context: TemplateContext, row: u32, random: u64) -> String {
    let names = names();
    let items = list::encoded([b"a&", b"b\""].map(|item| item[..].into()).into_iter(), 99);
    let captures = [Some(Arc::from(&b"t\"1"[..])), items.map(Into::into)];
    let values = Values {
        seq: 7,
        user: 8,
        pass: 9,
        now_ms: 1_700_000_000_123,
        random,
        feeds: &names.feeds,
        rows: &[row],
        captures: &captures,
        item: b"i",
        stamp: Publication::new(8, 3, 5),
        group: (2, 1),
        to: 11,
    };
    let mut out = Vec::new();
    Template::compile(text, context, &names).unwrap().render(&mut out, &values);
    String::from_utf8(out).unwrap()
}

#[test]
fn placeholders_are_replaced_by_values() {
    let text = "{{seq}}/{{user}}/{{ pass }}/{{now_ms}}/{{plan}}/{{people.age}}/{{token}}!";
    assert_eq!(rendered(text, TemplateContext::Body, 0, 1), "7/8/9/1700000000123/a b/31/t\"1!");
    assert_eq!(
        rendered(r#"{"a":{"b":"{{json token}}"}}"#, TemplateContext::Body, 0, 1),
        r#"{"a":{"b":"t\"1"}}"#
    );
}

#[test]
fn messages_name_their_sender_and_receiver() {
    let text = "{{group}}/{{member}}/{{to}}/{{to people.age}}";
    assert_eq!(rendered(text, TemplateContext::Body, 0, 1), "2/1/11/32", "row 11 of two");
    let stamp = rendered("{{stamp}}", TemplateContext::Body, 0, 1);
    let publication = publication::parse(stamp.as_bytes()).unwrap();
    assert_eq!((publication.publisher, publication.sequence), (8, 3));
    let stamped =
        |text| Template::compile(text, TemplateContext::Body, &names()).unwrap().is_stamped();
    assert!(stamped("a{{stamp}}") && !stamped("{{to}}"));
    let unknown =
        Template::compile("{{to people.agee}}", TemplateContext::Body, &names()).unwrap_err();
    assert!(matches!(unknown, BadTemplate::Unknown { name, .. } if name == "people.agee"));
}

#[test]
fn values_are_escaped_for_their_context() {
    assert_eq!(
        rendered("/x?n={{people.name}}", TemplateContext::Target, 1, 1),
        "/x?n=B%20%22b%22%0D%0AX:%20y"
    );
    assert_eq!(rendered("/x/{{url plan}}", TemplateContext::Target, 0, 1), "/x/a%20b");
    assert_eq!(rendered("a {{people.name}}", TemplateContext::Header, 1, 1), "a B \"b\"  X: y");
    let broken = Template::compile("/a b", TemplateContext::Target, &names()).unwrap_err();
    assert!(matches!(broken, BadTemplate::Invalid(said) if said.contains("' '")));
}

#[test]
fn random_values_differ_per_request_and_not_per_rendering() {
    let draws: BTreeSet<String> = (0..200)
        .map(|seed| rendered("{{random_int -1 2}}", TemplateContext::Body, 0, seed))
        .collect();
    let all = ["-1", "0", "1", "2"].map(str::to_owned);
    assert_eq!(draws, BTreeSet::from(all), "both ends, and nothing beyond");
    let text = "{{uuid}} {{uuid}} {{random_int 0 9223372036854775807}}";
    let first = rendered(text, TemplateContext::Body, 0, 5);
    assert_eq!(first, rendered(text, TemplateContext::Body, 0, 5));
    assert_ne!(first, rendered(text, TemplateContext::Body, 0, 6));
    let (one, other) = (&first[..36], &first[37..73]);
    assert_ne!(one, other, "two in one text differ");
    for uuid in [one, other] {
        let dashes: Vec<usize> = uuid.match_indices('-').map(|(at, _)| at).collect();
        assert_eq!(dashes, [8, 13, 18, 23], "{uuid}");
        assert!(uuid.as_bytes()[14] == b'4' && b"89ab".contains(&uuid.as_bytes()[19]), "{uuid}");
    }
}

#[test]
fn values_of_lists_are_used_by_number_at_random_and_counted() {
    let text = "{{items[1]}} {{json items[1]}} {{url items[0]}} {{count items}}";
    assert_eq!(rendered(text, TemplateContext::Body, 0, 1), "b\" b\\\" a%26 2");
    let text = "{{random items}} {{uuid}} {{random items}}";
    let draws = (0..100).map(|seed| rendered(text, TemplateContext::Body, 0, seed));
    let draws: BTreeSet<(String, String)> = draws
        .map(|text| {
            let words: Vec<&str> = text.split(' ').collect();
            (words[0].to_owned(), words[2].to_owned())
        })
        .collect();
    let both = ["a&", "b\""].map(|item| (item.to_owned(), item.to_owned()));
    assert_eq!(draws, BTreeSet::from(both), "the same within a request, and both");
    let compiled = |text| Template::compile(text, TemplateContext::Body, &names());
    assert_eq!(compiled("{{items[7]}}{{items[2]}}").unwrap().items().max(), Some((1, 7)));
    for (text, named) in [
        ("{{items}}", "{{items[0]}}"),
        ("{{token[0]}}", "take = \"all\""),
        ("{{random token}}", "take = \"all\""),
    ] {
        let BadTemplate::Invalid(said) = compiled(text).unwrap_err() else { panic!("{text}") };
        assert!(said.contains(named), "{text}: {said}");
    }
    for text in ["{{nothing[0]}}", "{{items[-1]}}", "{{items[x]}}", "{{count nothing}}"] {
        assert!(matches!(compiled(text), Err(BadTemplate::Unknown { .. })), "{text}");
    }
}

#[test]
fn boundary_is_the_same_within_a_request_and_bytes_stay() {
    let text =
        |seed| rendered("{{boundary}} {{uuid}} {{boundary}}", TemplateContext::Body, 0, seed);
    let (first, other) = (text(1), text(2));
    let words: Vec<&str> = first.split(' ').collect();
    assert_eq!((words[0], words[0].len()), (words[2], 42));
    assert_ne!(words[0], other.split(' ').next().unwrap());
    let header = rendered("a={{boundary}}", TemplateContext::Header, 0, 1);
    assert_eq!(header, format!("a={}", words[0]));
    let bytes = Template::of_bytes(b"\xff{{seq}}\0");
    assert!(bytes.is_constant());
    let seq = Template::compile("{{seq}}", TemplateContext::Body, &names()).unwrap();
    assert!(!Template::joined([bytes, seq]).is_constant());
}

#[test]
fn unknown_names_are_reported_with_the_known_ones() {
    let wrong = |text| Template::compile(text, TemplateContext::Body, &names()).unwrap_err();
    let BadTemplate::Unknown { name, known } = wrong("{{people.nmae}}") else { panic!() };
    assert_eq!(name, "people.nmae");
    for one in ["people.name", "plan", "token", "uuid"] {
        assert!(known.iter().any(|known| known == one), "{one}: {known:?}");
    }
    for text in ["{{seq", "{{random_int 5 1}}", "{{random_int 5 x}}", "{{env NO_SUCH_NAME_9}}"] {
        assert!(matches!(wrong(text), BadTemplate::Invalid(_)), "{text}");
    }
    assert!(matches!(wrong("{{}}"), BadTemplate::Unknown { .. }));
    assert!(Template::compile("{{plan}}", TemplateContext::Body, &names()).unwrap().is_constant());
    assert!(!Template::compile("{{seq}}", TemplateContext::Body, &names()).unwrap().is_constant());
}
