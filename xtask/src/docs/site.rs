//! What goes into the site and what comes out: sources gathered in one folder, links followed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// Copies the pages of `docs/SUMMARY.md`, and the files they link to, from `root` into `source`.
/// Returns the pages in their order, as paths from the root.
///
/// # Errors
/// When a page of the summary is missing, or a file cannot be copied.
pub(crate) fn assemble(root: &Path, source: &Path) -> Result<Vec<PathBuf>> {
    if source.exists() {
        fs::remove_dir_all(source)?;
    }
    fs::create_dir_all(source)?;
    fs::copy(root.join("docs/book.toml"), source.join("book.toml"))?;
    let docs = Path::new("docs");
    let summary = fs::read_to_string(root.join("docs/SUMMARY.md"))?;
    let (mut pages, mut list) = (Vec::new(), String::new());
    for line in summary.lines() {
        match line.split_once("](") {
            Some((title, rest)) => {
                let page = joined(docs, rest.trim_end().trim_end_matches(')'));
                list += &format!("{title}]({})\n", in_book(&page.to_string_lossy()));
                pages.push(page);
            }
            None => list += &format!("{line}\n"),
        }
    }
    fs::write(source.join("SUMMARY.md"), list)?;
    ensure!(!pages.is_empty(), "docs/SUMMARY.md lists no page");
    for page in &pages {
        let text = fs::read_to_string(root.join(page))
            .with_context(|| format!("docs/SUMMARY.md lists {}", page.display()))?;
        let to = source.join(in_book(&page.to_string_lossy()));
        fs::create_dir_all(to.parent().context("a page lies in a folder")?)?;
        fs::write(to, linked_in_book(&text))?;
        let folder = page.parent().context("a page lies in a folder")?;
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = target.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") || target.contains(' ') {
                continue;
            }
            let file = joined(folder, target);
            if root.join(&file).is_dir() {
                copy_folder(root, source, &file)?;
            } else if root.join(&file).is_file() && !pages.contains(&file) {
                copy(root, source, &file)?;
            }
        }
    }
    Ok(pages)
}

/// Sends visitors of the site's root to its first page.
pub(crate) fn write_index(book: &Path, first: &Path) -> Result<()> {
    let url = PathBuf::from(in_book(&first.to_string_lossy())).with_extension("html");
    let url = url.display();
    let page = format!(
        "<!DOCTYPE html><html lang=\"en\"><meta charset=\"utf-8\"><title>standfast</title>\
         <meta http-equiv=\"refresh\" content=\"0; url={url}\"><a href=\"{url}\">standfast</a></html>\n"
    );
    Ok(fs::write(book.join("index.html"), page)?)
}

/// Links of the built pages that lead to no file, or to no element of the page they name.
pub(crate) fn broken_links(book: &Path, pages: &[PathBuf]) -> Result<Vec<String>> {
    let mut broken = Vec::new();
    for page in pages {
        let page = book.join(in_book(&page.to_string_lossy())).with_extension("html");
        let text = fs::read_to_string(&page).with_context(|| page.display().to_string())?;
        let folder = page.parent().context("a page lies in a folder")?;
        for link in values(&text, "href").into_iter().chain(values(&text, "src")) {
            // Other sites, and paths in examples of code: links between pages are relative.
            if link.contains(':') || link.starts_with('/') {
                continue;
            }
            let (path, id) = link.split_once('#').unwrap_or((link, ""));
            let file = if path.is_empty() { page.clone() } else { joined(folder, path) };
            let file = if file.is_dir() { file.join("index.html") } else { file };
            let there = file.is_file()
                && (id.is_empty() || values(&fs::read_to_string(&file)?, "id").contains(id));
            if !there {
                let page = page.strip_prefix(book).unwrap_or(&page);
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    Ok(broken)
}

/// The path of a page in the book, where a folder's page is called as sites call it.
fn in_book(path: &str) -> String {
    path.replace("README.md", "index.md")
}

/// A page whose links have these names; mdBook leaves links as they are.
fn linked_in_book(text: &str) -> String {
    text.replace("README.md)", "index.md)").replace("README.md#", "index.md#")
}

/// Copies the files of a folder with a page that lists them: a site shows no folders.
fn copy_folder(root: &Path, source: &Path, folder: &Path) -> Result<()> {
    let mut names = Vec::new();
    for entry in fs::read_dir(root.join(folder))? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            copy(root, source, &folder.join(entry.file_name()))?;
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    let items: String =
        names.iter().map(|name| format!("<li><a href=\"{name}\">{name}</a>")).collect();
    let title = folder.display();
    let page = format!(
        "<!DOCTYPE html><html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title>\
         <h1>{title}</h1><ul>{items}</ul></html>\n"
    );
    Ok(fs::write(source.join(folder).join("index.html"), page)?)
}

fn copy(root: &Path, source: &Path, file: &Path) -> Result<()> {
    let to = source.join(file);
    fs::create_dir_all(to.parent().context("a file lies in a folder")?)?;
    fs::copy(root.join(file), to).with_context(|| file.display().to_string())?;
    Ok(())
}

/// The values of an attribute in a page.
fn values<'a>(page: &'a str, attribute: &str) -> BTreeSet<&'a str> {
    let start = format!(" {attribute}=\"");
    page.split(start.as_str()).skip(1).filter_map(|rest| rest.split('"').next()).collect()
}

/// `path` as seen from `folder`, without `.` and `..`.
fn joined(folder: &Path, path: &str) -> PathBuf {
    let mut joined = folder.to_path_buf();
    for part in Path::new(path).components() {
        match part {
            Component::ParentDir => {
                joined.pop();
            }
            Component::Normal(name) => joined.push(name),
            _ => {}
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_joined_without_dots() {
        let joined = |path| joined(Path::new("docs/load"), path);
        assert_eq!(joined("../../bench/README.md"), Path::new("bench/README.md"));
        assert_eq!(joined("./terms.md"), Path::new("docs/load/terms.md"));
    }

    #[test]
    fn attributes_are_found() {
        let page = "<a id=\"x\" href=\"y.html#z\">";
        assert_eq!(values(page, "href"), BTreeSet::from(["y.html#z"]));
        assert_eq!(values(page, "id"), BTreeSet::from(["x"]));
    }
}
