//! `cargo xtask docs`: the documentation site, built by mdBook from `docs/` into `target/book`.
//!
//! `docs/SUMMARY.md` lists the pages, among them some outside `docs/` (ARCHITECTURE.md,
//! bench/README.md). mdBook wants all pages in one folder, so this task copies what the summary lists
//! and what the pages link to into `target/book-src`, laid out as in the repository: relative links
//! then work in both places. After the build every link of the site is followed.
//!
//! Not here: the checks of the Markdown itself (`tests/docs.rs`), which need no mdBook.

mod pictures;
mod site;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::step;

/// The release that the site is tested with.
const MDBOOK: &str = "0.5.4";

#[derive(Args)]
pub(crate) struct DocsArgs {
    /// Install mdBook into target/tools if it is missing (about a minute of CPU). CI=1 does so too.
    #[arg(long)]
    install: bool,
    /// Count as a skipped test if mdBook is missing, instead of failing.
    #[arg(long, hide = true)]
    skip_without_mdbook: bool,
    /// Take the pictures in docs/images again; needs tmux, Chromium and an idle machine.
    #[arg(long)]
    screenshots: bool,
}

/// Builds the site and follows its links, or takes the pictures. Whether every link leads somewhere.
pub(crate) fn run(args: &DocsArgs) -> Result<bool> {
    if args.screenshots {
        return pictures::take(&step::root().join("docs/images"));
    }
    let Some(mdbook) = mdbook(args.install || step::is_ci())? else {
        let install = install_command();
        println!("mdBook is missing: run `cargo xtask docs --install`, or `{install}`");
        ensure!(args.skip_without_mdbook, "the site was not built");
        // Read by the suite.
        println!("test result: ok. 0 passed; 0 failed; 1 ignored");
        return Ok(true);
    };
    let (source, book) =
        (step::target_folder().join("book-src"), step::target_folder().join("book"));
    let pages = site::assemble(&step::root(), &source)?;
    let mut build = Command::new(mdbook);
    build.args(["build", "--dest-dir"]).arg(&book).arg(&source);
    ensure!(build.status()?.success(), "mdBook failed");
    site::write_index(&book, &pages[0])?;
    let broken = site::broken_links(&book, &pages)?;
    for link in &broken {
        println!("broken link: {link}");
    }
    println!("{} pages, {} broken links: {}", pages.len(), broken.len(), shown(&book));
    Ok(broken.is_empty())
}

/// The executable of mdBook: ours in `target/tools`, the user's, or a newly installed one.
fn mdbook(install: bool) -> Result<Option<PathBuf>> {
    let own = tools().join("bin/mdbook");
    for candidate in [own.clone(), PathBuf::from("mdbook")] {
        if version(&candidate).is_some_and(|version| version.starts_with("mdbook v0.5.")) {
            return Ok(Some(candidate));
        }
    }
    if !install {
        return Ok(None);
    }
    println!("installing mdBook {MDBOOK} into {}", shown(&tools()));
    let command = install_command();
    let mut words = command.split(' ');
    let mut cargo = Command::new(words.next().context("a command")?);
    ensure!(cargo.args(words).current_dir(step::root()).status()?.success(), "`{command}` failed");
    Ok(Some(own))
}

/// Without optimisation: it compiles in a third of the time and builds these pages in seconds.
fn install_command() -> String {
    let root = tools();
    format!(
        "cargo install mdbook --version {MDBOOK} --locked --debug --no-default-features \
         --features search --root {}",
        shown(&root)
    )
}

fn tools() -> PathBuf {
    step::target_folder().join("tools")
}

fn version(mdbook: &Path) -> Option<String> {
    let output = Command::new(mdbook).arg("--version").stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A path as seen from the root of the repository.
fn shown(path: &Path) -> String {
    path.strip_prefix(step::root()).unwrap_or(path).display().to_string()
}
