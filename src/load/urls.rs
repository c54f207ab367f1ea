//! Several destinations in one URL: `{1..4}` stands for each number of a range, wherever it is:
//! `ws://127.0.0.{1..2}:{9000..9003}/echo` is eight URLs.

/// Every URL that `url` stands for, at most `most`.
///
/// # Errors
/// A text for people: a range that is none, or too many.
pub(super) fn expand(url: &str, most: usize) -> Result<Vec<String>, String> {
    let Some((before, rest)) = url.split_once('{') else { return Ok(vec![url.to_owned()]) };
    let wrong = || format!("{url:?}: write a range of numbers as {{1..4}}");
    let (range, after) = rest.split_once('}').ok_or_else(wrong)?;
    let (first, last) = range.split_once("..").ok_or_else(wrong)?;
    let number = |text: &str| text.parse::<u32>().map_err(|_| wrong());
    let (first, last) = (number(first)?, number(last)?);
    if first > last {
        return Err(wrong());
    }
    let many = || format!("{url:?} stands for more than {most} destinations");
    if (last - first) as usize >= most {
        return Err(many());
    }
    // What follows may hold a range of its own.
    let tails = expand(after, most)?;
    let urls: Vec<String> = (first..=last)
        .flat_map(|number| tails.iter().map(move |tail| format!("{before}{number}{tail}")))
        .collect();
    if urls.len() > most { Err(many()) } else { Ok(urls) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_multiply_and_the_last_runs_fastest() {
        let urls = expand("ws://127.0.0.{1..2}:{9000..9001}/x", 256).unwrap();
        let expected = [
            "ws://127.0.0.1:9000/x",
            "ws://127.0.0.1:9001/x",
            "ws://127.0.0.2:9000/x",
            "ws://127.0.0.2:9001/x",
        ];
        assert_eq!(urls, expected);
        assert_eq!(expand("ws://a/", 256).unwrap(), ["ws://a/"]);
    }

    #[test]
    fn what_is_no_range_is_refused() {
        for url in
            ["ws://a:{1-3}/", "ws://a:{3..1}/", "ws://a:{1..3/", "ws://a:{..}/", "ws://{1..}/"]
        {
            assert!(expand(url, 256).unwrap_err().contains("{1..4}"), "{url}");
        }
        assert!(expand("ws://{0..15}:{0..16}/", 256).unwrap_err().contains("256"));
        assert!(expand("ws://a:{0..4294967295}/", 256).unwrap_err().contains("256"));
    }
}
