//! The dependency layers of the workspace, and rules that no lint checks.
//!
//! Declared edges come from `cargo metadata`, what arrives through others from `cargo tree`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Each workspace package and the workspace packages it may depend on, lowest layer first.
const WORKSPACE_CRATES: &[(&str, &[&str])] = &[
    ("standfast-wire", &[]),
    ("standfast-action-cable", &[]),
    ("standfast-capacity", &[]),
    ("standfast-brokers", &[]),
    ("standfast-engine", &["standfast-wire"]),
    ("standfast-topics", &["standfast-engine", "standfast-wire"]),
    (
        "standfast",
        // Itself with its features, for its tests.
        &[
            "standfast",
            "standfast-brokers",
            "standfast-engine",
            "standfast-capacity",
            "standfast-topics",
            "standfast-wire",
        ],
    ),
    (
        "standfast-admin",
        &["standfast-engine", "standfast-capacity", "standfast-topics", "standfast-wire"],
    ),
    (
        "standfast-serve",
        &[
            "standfast-admin",
            "standfast-action-cable",
            "standfast-brokers",
            "standfast-engine",
            "standfast-capacity",
            "standfast-topics",
            "standfast-wire",
        ],
    ),
    (
        "standfast-load",
        &["standfast-action-cable", "standfast-engine", "standfast-capacity", "standfast-wire"],
    ),
    (
        "standfast-proxy",
        &["standfast-admin", "standfast-engine", "standfast-capacity", "standfast-wire"],
    ),
    (
        "standfast-cli",
        &[
            "standfast-admin",
            "standfast-action-cable",
            "standfast-brokers",
            "standfast-engine",
            "standfast-capacity",
            "standfast-load",
            "standfast-proxy",
            "standfast-serve",
        ],
    ),
    (
        "standfast-sim",
        &[
            "standfast-brokers",
            "standfast-engine",
            "standfast-proxy",
            "standfast-topics",
            "standfast-wire",
        ],
    ),
    (
        "standfast-node",
        &[
            "standfast-brokers",
            "standfast-capacity",
            "standfast-engine",
            "standfast-topics",
            "standfast-wire",
        ],
    ),
    // On the public library alone.
    ("standfast-chat", &["standfast"]),
    ("xtask", &[]),
];

/// Packages with a runtime or a control plane, which the data plane must not load.
const CONTROL_PLANE: &[&str] = &["tokio", "mio", "axum", "hyper", "tracing"];

/// Names that are too vague for a crate or module.
const EMPTY_NAMES: &[&str] = &["common", "utils", "types", "core", "config", "macros"];

#[test]
fn crates_depend_only_on_lower_layers() {
    let allowed: BTreeMap<&str, &[&str]> = WORKSPACE_CRATES.iter().copied().collect();
    let declared = declared_edges();
    let members: BTreeSet<&str> = declared.keys().map(String::as_str).collect();
    let known: BTreeSet<&str> = allowed.keys().copied().collect();
    assert_eq!(members, known, "the table and the workspace differ");
    for (package, dependencies) in &declared {
        let allowed = allowed[package.as_str()];
        let members_only = dependencies.iter().filter(|name| members.contains(name.as_str()));
        for dependency in members_only {
            let may = allowed.contains(&dependency.as_str());
            assert!(may, "{package} may not depend on {dependency}");
        }
    }
}

#[test]
fn only_the_simulations_enable_the_feature_simulation() {
    let (feature, forwarded) = ("simulation", "/simulation");
    for package in metadata()["packages"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap();
        for dependency in package["dependencies"].as_array().unwrap() {
            let features = dependency["features"].as_array().unwrap();
            let enabled = features.iter().any(|enabled| enabled.as_str() == Some(feature));
            let on = dependency["name"].as_str().unwrap();
            assert!(!enabled || name == "standfast-sim", "{name} enables `{feature}` of {on}");
        }
        for (other, enables) in package["features"].as_object().unwrap() {
            let enables = enables.as_array().unwrap().iter().filter_map(Value::as_str);
            let by = enables.filter(|on| *on == feature || on.ends_with(forwarded)).count();
            assert!(by == 0 || other == feature, "`{other}` of {name} enables `{feature}`");
        }
    }
}

#[test]
fn the_data_plane_carries_no_runtime() {
    for package in ["wire", "action-cable", "capacity", "engine", "topics", "load", ""] {
        let package = ["standfast", package].join("-");
        let loaded = loaded_by(package.trim_end_matches('-'));
        for name in CONTROL_PLANE {
            assert!(!loaded.contains(*name), "{package} loads {name}");
        }
        assert!(!loaded.contains("standfast-brokers"), "{package} loads brokers without a feature");
    }
}

#[test]
fn lowest_layer_is_no_std() {
    for (package, folder) in [("wire", "wire"), ("action-cable", "action_cable")] {
        let loaded = loaded_by(&format!("standfast-{package}"));
        for name in ["libc", "rustix", "polling", "socket2"] {
            assert!(!loaded.contains(name), "{package} loads {name}");
        }
        let lib = root().join("crates").join(folder).join("src/lib.rs");
        let lib = fs::read_to_string(lib).unwrap();
        let no_std = lib.lines().any(|line| line.contains("no_std"));
        assert!(no_std, "{package} is no_std + alloc");
    }
    assert!(
        !loaded_by("standfast-capacity").contains("libc"),
        "capacity goes through rustix alone"
    );
}

#[test]
fn crate_names_are_specific() {
    for package in declared_edges().keys() {
        let last = package.rsplit('-').next().unwrap();
        assert!(!EMPTY_NAMES.contains(&last), "{package} is too vague a name");
    }
    for file in rust_files() {
        let stem = file.file_stem().unwrap().to_string_lossy().into_owned();
        let empty = ["common", "util", "utils", "helpers", "misc"].contains(&stem.as_str());
        assert!(!empty, "{} is too vague a name", file.display());
    }
}

#[test]
fn unsafe_code_is_allowed_in_the_sys_layer_alone() {
    // The workspace denies the lint, so unsafe code compiles only where an attribute lifts it.
    let lint = ["unsafe", "code"].join("_");
    let lifting = ["allow(", "expect(", "warn("];
    let sys = root().join("crates/engine/src/sys");
    for file in rust_files() {
        let text = fs::read_to_string(&file).unwrap();
        let mut about_it = text.lines().filter(|line| line.contains(&lint));
        let lifts = about_it.any(|line| lifting.iter().any(|word| line.contains(word)));
        let inside = file.starts_with(&sys);
        assert!(!lifts || inside, "{} allows unsafe code", file.display());
    }
}

#[test]
fn every_crate_takes_the_workspace_lints() {
    let root_manifest = manifest(&root().join("Cargo.toml"));
    let rust = &root_manifest["workspace"]["lints"]["rust"];
    assert_eq!(rust["unsafe_code"].as_str(), Some("deny"));
    assert_eq!(rust["missing_docs"].as_str(), Some("warn"));
    for package in metadata()["packages"].as_array().unwrap() {
        let path = package["manifest_path"].as_str().unwrap();
        let lints = manifest(Path::new(path)).get("lints").cloned();
        let inherits = lints.and_then(|lints| lints.get("workspace")?.as_bool());
        assert_eq!(inherits, Some(true), "{path} does not inherit the workspace's lints");
    }
}

#[test]
fn every_module_has_a_doc_comment() {
    let files = rust_files();
    assert!(files.len() > 10, "found only {} files: looking in the wrong place", files.len());
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let first = text.lines().next().unwrap_or_default();
        assert!(first.starts_with("//!"), "{} does not open with `//!`", file.display());
    }
}

/// Every workspace package with the packages it names, whatever the kind of dependency.
fn declared_edges() -> BTreeMap<String, BTreeSet<String>> {
    let name = |value: &Value| value["name"].as_str().unwrap().to_owned();
    let metadata = metadata();
    let packages = metadata["packages"].as_array().unwrap().iter();
    packages
        .map(|package| {
            let dependencies = package["dependencies"].as_array().unwrap();
            (name(package), dependencies.iter().map(name).collect())
        })
        .collect()
}

/// The names of everything `package` loads on Linux x86-64, itself included, tests left out.
fn loaded_by(package: &str) -> BTreeSet<String> {
    let target = "--target=x86_64-unknown-linux-gnu";
    let text = cargo(&["tree", "--package", package, "--edges=normal", "--prefix=none", target]);
    let names = text.lines().filter_map(|line| line.split_whitespace().next());
    names.map(str::to_owned).collect()
}

fn metadata() -> Value {
    serde_json::from_str(&cargo(&["metadata", "--no-deps", "--format-version", "1"])).unwrap()
}

fn cargo(args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO"));
    command.args(args).current_dir(root());
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo {args:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn manifest(path: &Path) -> toml::Table {
    toml::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Every Rust file of the workspace.
fn rust_files() -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders: Vec<PathBuf> = ["crates", "examples", "src", "tests", "xtask"]
        .iter()
        .map(|name| root().join(name))
        .collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.extension().and_then(|extension| extension.to_str()) {
                _ if path.is_dir() => folders.push(path),
                Some("rs") => files.push(path),
                _ => {}
            }
        }
    }
    files
}

/// A published crate is built from its package alone, so files that its code includes lie in its folder.
/// `cargo publish --dry-run` finds that as well, after minutes of compiling.
#[test]
fn crates_include_only_files_of_their_package() {
    let mut included = 0;
    for file in rust_files() {
        let below = file.strip_prefix(root()).unwrap();
        let parts: Vec<&str> = below.iter().filter_map(|part| part.to_str()).collect();
        let package = match parts.as_slice() {
            [folder @ ("crates" | "examples"), name, "src", ..] => format!("{folder}/{name}"),
            ["src", ..] => String::new(),
            _ => continue,
        };
        let text = fs::read_to_string(&file).unwrap();
        for path in ["include_str!(\"", "include_bytes!(\""]
            .iter()
            .flat_map(|form| text.split(form).skip(1).filter_map(|rest| rest.split('"').next()))
        {
            included += 1;
            let target = file.parent().unwrap().join(path).canonicalize().expect(path);
            let inside = target.starts_with(root().join(&package).canonicalize().unwrap());
            // `exclude` in Cargo.toml, and other packages.
            let left_out = ["crates", "xtask", "bench", ".cargo", ".ci", ".github"];
            let packed = !package.is_empty()
                || !left_out.iter().any(|name| target.starts_with(root().join(name)));
            assert!(inside && packed, "{}: {path} is not in its package", file.display());
        }
    }
    assert!(included >= 20, "{included} included files were found");
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Tables of the docs name tests that exist.
#[test]
fn tests_named_in_the_docs_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sources = String::new();
    for folder in ["tests", "crates"] {
        read_sources(&root.join(folder), &mut sources);
    }
    for (page, heading, at_least) in [
        ("docs/protocol/websocket.md", "## Tests of each MUST", 40),
        ("docs/protocol/cable.md", "## Tests of the behaviour of clients and servers", 20),
    ] {
        let text = fs::read_to_string(root.join(page)).unwrap();
        let (_, table) = text.split_once(heading).expect("the table");
        let mut named = 0;
        for row in table.lines().filter(|line| line.starts_with("| ")) {
            let shown = row.split('|').nth(2).unwrap_or_default();
            for test in shown.split('`').skip(1).step_by(2) {
                named += 1;
                assert!(sources.contains(&format!("fn {test}(")), "{page}: no test {test}");
            }
        }
        assert!(named >= at_least, "{named} tests in the table of {page}");
    }
}

fn read_sources(folder: &Path, all: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_sources(&path, all);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            *all += &fs::read_to_string(&path).unwrap();
        }
    }
}
