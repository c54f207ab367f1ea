//! THIRD-PARTY.txt: the libraries in the executable, with the texts of their licences. Each text is there
//! once, with the names of those that have it.
//!
//! Whether the licences are permitted is checked by `cargo deny check`, not here.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{TARGETS, output};
use crate::step;

/// Beginnings of the names of files with licences, in lower case.
const NAMES: [&str; 5] = ["license", "licence", "copying", "notice", "copyright"];

/// What is in the executable beside the packages of cargo.
const RUNTIME: &str = "\
The executable also contains Rust's standard library (https://github.com/rust-lang/rust, MIT OR Apache-2.0, \
copyright The Rust Project Contributors), LLVM's libunwind (Apache-2.0 WITH LLVM-exception, copyright the LLVM \
project) and musl (https://musl.libc.org, MIT, copyright 2005-2020 Rich Felker, et al.).
";

struct Library {
    title: String,
    licence: String,
    texts: Vec<String>,
}

/// The text of the file.
pub(super) fn notices() -> Result<String> {
    let mut libraries = BTreeMap::new();
    for target in &TARGETS {
        let mut metadata = step::cargo(&["metadata", "--format-version=1", "--locked"]);
        metadata.args(["--filter-platform", target.triple]);
        let metadata: Value = serde_json::from_str(&output(&mut metadata)?)?;
        for (id, library) in linked(&metadata)? {
            libraries.insert(id, library);
        }
    }
    let mut written = "Libraries in the executable standfast\n\n".to_owned();
    let mut texts: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for library in libraries.values() {
        writeln!(written, "{}: {}", library.title, library.licence)?;
        for text in &library.texts {
            texts.entry(text).or_default().push(&library.title);
        }
    }
    write!(written, "\n{RUNTIME}")?;
    for (text, titles) in texts {
        let line = "-".repeat(80);
        write!(written, "\n{line}\n{}\n{line}\n\n{text}\n", titles.join(", "))?;
    }
    Ok(written)
}

/// The packages of others that the executable is linked from, by id.
fn linked(metadata: &Value) -> Result<BTreeMap<String, Library>> {
    let array = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let (packages, nodes) = (array(&metadata["packages"]), array(&metadata["resolve"]["nodes"]));
    let own = packages.iter().find(|package| package["name"] == "standfast-cli");
    let mut open = vec![own.context("the package of the executable")?["id"].clone()];
    let mut reached = BTreeSet::new();
    while let Some(id) = open.pop() {
        if !reached.insert(id.to_string()) {
            continue;
        }
        let node = nodes.iter().find(|node| node["id"] == id).context("a node per package")?;
        for dependency in array(&node["deps"]) {
            let kinds = array(&dependency["dep_kinds"]);
            if kinds.iter().any(|kind| kind["kind"].is_null()) {
                open.push(dependency["pkg"].clone());
            }
        }
    }
    let mut libraries = BTreeMap::new();
    for package in packages.iter().filter(|package| reached.contains(&package["id"].to_string())) {
        // Ours have no source.
        if package["source"].is_null() {
            continue;
        }
        let text = |key: &str| package[key].as_str().unwrap_or_default().to_owned();
        let title = format!("{} {}", text("name"), text("version"));
        let manifest = text("manifest_path");
        let folder = Path::new(&manifest).parent().context("a manifest has a folder")?;
        let library = Library { licence: text("license"), texts: licence_texts(folder)?, title };
        ensure!(!library.licence.is_empty(), "{} states no licence", library.title);
        libraries.insert(package["id"].to_string(), library);
    }
    Ok(libraries)
}

/// The texts in the folder of a package and in `LICENSES` below it, in order of their names.
fn licence_texts(folder: &Path) -> Result<Vec<String>> {
    let mut files = BTreeSet::new();
    for folder in [folder.to_path_buf(), folder.join("LICENSES"), folder.join("aws-lc")] {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
            let is_code = [".rs", ".toml", ".h", ".c"].iter().any(|ending| name.ends_with(ending));
            let in_licences = folder.ends_with("LICENSES");
            if path.is_file()
                && !is_code
                && (in_licences || NAMES.iter().any(|n| name.starts_with(n)))
            {
                files.insert(path);
            }
        }
    }
    let mut texts = Vec::new();
    for file in files {
        let text = String::from_utf8_lossy(&fs::read(&file)?).replace("\r\n", "\n");
        texts.push(text.trim_matches('\n').to_owned());
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_library_is_named_and_test_tools_are_not() {
        let notices = notices().unwrap();
        for library in ["\nrustls 0.", "\naws-lc-sys 0.", "\ntokio 1.", "\nratatui 0."] {
            assert!(notices.contains(library), "{library} is missing");
        }
        for other in ["\nproptest ", "\ntungstenite ", "\nstandfast-", "\ncc "] {
            assert!(!notices.contains(other), "{other} is not in the executable");
        }
        assert!(notices.contains("Redistribution and use in source and binary forms"));
        assert!(notices.contains("Permission is hereby granted, free of charge"));
    }
}
