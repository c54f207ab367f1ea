//! A package index of PyPI and a registry of npm as files, for a web server on loopback: nothing is published
//! to try what users type.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::dist::output;
use crate::dist::roots::Root;
use crate::step;

/// The npm that is installed into the empty root; Debian's has 400 packages.
const NPM: &str = "10.9.4";

pub(super) struct Registry {
    /// What the web server serves.
    pub(super) folder: PathBuf,
}

impl Registry {
    /// Lists the wheels and packages of npm that are in `dist`.
    pub(super) fn write(dist: &Path) -> Result<Registry> {
        let folder = dist.join("staging/registry");
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        let (files, simple) = (folder.join("files"), folder.join("simple/standfast"));
        for folder in [&files, &simple, &folder.join("@standfast")] {
            fs::create_dir_all(folder)?;
        }
        let mut links = String::new();
        for entry in fs::read_dir(dist)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let (is_wheel, is_npm) = (name.ends_with(".whl"), name.ends_with(".tgz"));
            if is_wheel || is_npm {
                fs::hard_link(&path, files.join(&name))?;
            }
            if is_wheel {
                links.push_str(&format!("<a href=\"/files/{name}\">{name}</a>\n"));
            }
            if is_npm {
                let (package, document) = packument(&path, &name)?;
                fs::write(folder.join(package), document)?;
            }
        }
        fs::write(simple.join("index.html"), links)?;
        Ok(Registry { folder })
    }
}

/// The name of a package of npm, and what a registry answers about it.
fn packument(path: &Path, name: &str) -> Result<(String, String)> {
    let manifest = output(Command::new("tar").arg("-xzOf").arg(path).arg("package/package.json"))?;
    let mut manifest: Value = serde_json::from_str(&manifest)?;
    manifest["dist"] = json!({ "tarball": format!("http://127.0.0.1/files/{name}") });
    let text = |key: &str| manifest[key].as_str().context("text").map(str::to_owned);
    let (package, version) = (text("name")?, text("version")?);
    let document = json!({
        "name": package,
        "dist-tags": { "latest": version },
        "versions": { version: manifest },
    });
    Ok((package, document.to_string()))
}

/// Installs npm from its registry into a root that has Node.js.
pub(super) fn install_npm(root: &Root) -> Result<()> {
    let tools = step::target_folder().join("tools");
    let file = tools.join(format!("npm-{NPM}.tgz"));
    if !file.exists() {
        let mut npm = Command::new("npm");
        npm.args(["pack", "--silent", "--pack-destination"]).arg(&tools).arg(format!("npm@{NPM}"));
        output(&mut npm)?;
    }
    let folder = root.path("/usr/local/lib/npm");
    fs::create_dir_all(&folder)?;
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(&folder).args(["--strip-components=1", "-xzf"]).arg(&file);
    output(&mut tar)?;
    for tool in ["npm", "npx"] {
        let target = format!("/usr/local/lib/npm/bin/{tool}-cli.js");
        symlink(target, root.path("/usr/local/bin").join(tool))?;
    }
    Ok(())
}
