//! Empty Debian 12 roots in which packages are installed and run, without a network: each command has
//! loopback, `/proc` and `/dev` of its own, and nothing of this machine's file system.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::output;
use crate::step;

/// A mirror's index of what the roots contain is not kept: `apt-get` inside can only install files.
const DEBIAN: &str = "bookworm";

/// Runs `"$@"` in the root `$0`, after starting `$SERVER` outside it if there is one.
const ENTER: &str = r#"
set -e
ip link set lo up
mount -t proc proc "$0/proc"
mount --bind /dev "$0/dev"
if [ -n "$SERVER" ]; then
    $SERVER >/dev/null 2>&1 &
    until (: < /dev/tcp/127.0.0.1/80) 2>/dev/null; do kill -0 $! && sleep 0.05; done
fi
env -i PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin HOME=/root LANG=C.UTF-8 $VARIABLES \
    chroot $USERSPEC "$0" "$@" || exit $?
"#;

/// What this machine lacks for the roots, with the command that installs it.
pub(super) fn lacks() -> Option<String> {
    let is_root = output(Command::new("id").arg("-u")).is_ok_and(|user| user.trim() == "0");
    if !is_root {
        return Some("the packages are installed into empty roots only as root".to_owned());
    }
    let missing = ["mmdebstrap", "ip", "unshare"].into_iter().find(|tool| {
        !step::succeeds({
            let mut command = Command::new("which");
            command.arg(tool);
            command
        })
    })?;
    Some(format!("{missing} is missing: apt-get install mmdebstrap iproute2 util-linux"))
}

/// Makes or finds the tar file of a minimal Debian 12 with these packages.
pub(super) fn debian(packages: &[&str]) -> Result<PathBuf> {
    let name = [&[DEBIAN], packages].concat().join("-");
    let include = format!("--include={}", packages.join(","));
    // It takes no empty list.
    let include = Some(include).filter(|_| !packages.is_empty());
    made(&name, include.into_iter().chain(["--variant=minbase".to_owned(), DEBIAN.to_owned()]))
}

/// Makes or finds the tar file with what a package of a release has for a processor, and the packages that it depends on,
/// unpacked: to look libraries up in.
pub(super) fn unpacked(release: &str, processor: &str, package: &str) -> Result<PathBuf> {
    let name = format!("{release}-{processor}-{package}");
    let (include, processor) =
        (format!("--include={package}"), format!("--architectures={processor}"));
    made(&name, ["--variant=extract".to_owned(), include, processor, release.to_owned()])
}

/// Calls mmdebstrap for a tar file, unless it is here.
fn made(name: &str, words: impl IntoIterator<Item = String>) -> Result<PathBuf> {
    let folder = step::target_folder().join("tools");
    fs::create_dir_all(&folder)?;
    let file = folder.join(format!("{name}.tar"));
    if !file.exists() {
        println!("making a root of Debian: {name}");
        let unfinished = folder.join(format!("{name}-unfinished.tar"));
        output(Command::new("mmdebstrap").args(words).arg(&unfinished))?;
        fs::rename(&unfinished, &file)?;
    }
    Ok(file)
}

/// A file system of its own, removed at the end.
pub(super) struct Root {
    folder: PathBuf,
    /// A command that runs outside as long as one inside does, such as a package registry on loopback.
    server: String,
    /// `NAME=VALUE`, for commands inside.
    variables: String,
    /// An option of chroot(1).
    user: &'static str,
    /// What is removed at the end.
    all: PathBuf,
}

impl Root {
    /// Unpacks a tar file.
    pub(super) fn unpack(tar: &Path, name: &str) -> Result<Root> {
        let root = Root::empty(name)?;
        output(Command::new("tar").arg("-C").arg(&root.folder).arg("-xf").arg(tar))?;
        Ok(root)
    }

    /// A root with `/proc` and `/dev` only.
    pub(super) fn empty(name: &str) -> Result<Root> {
        let folder = step::target_folder().join("dist/roots").join(name);
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        for mount_point in ["proc", "dev"] {
            fs::create_dir_all(folder.join(mount_point))?;
        }
        let all = folder.clone();
        Ok(Root { folder, server: String::new(), variables: String::new(), user: "", all })
    }

    /// The root in a folder of this one, with commands run by the user that this option of chroot names.
    pub(super) fn below(mut self, folder: PathBuf, user: &'static str) -> Root {
        self.folder = folder;
        self.user = user;
        self
    }

    /// Serves the files below `folder` at 127.0.0.1:80 to commands inside, which have these variables.
    pub(super) fn with_registry(mut self, folder: &Path, variables: &[&str]) -> Root {
        self.server =
            format!("python3 -m http.server --bind 127.0.0.1 --directory {} 80", folder.display());
        self.variables = variables.join(" ");
        self
    }

    /// Where a file of the root is outside it.
    pub(super) fn path(&self, inside: &str) -> PathBuf {
        self.folder.join(inside.trim_start_matches('/'))
    }

    /// Copies a file to `/`; returns its path inside.
    pub(super) fn give(&self, file: &Path) -> Result<String> {
        let name = file.file_name().context("a file has a name")?.to_string_lossy();
        fs::copy(file, self.path(&name)).with_context(|| file.display().to_string())?;
        Ok(format!("/{name}"))
    }

    /// Runs a command in the root; returns its standard output.
    ///
    /// # Errors
    /// When it fails, with all that it printed.
    pub(super) fn run(&self, words: &[&str]) -> Result<String> {
        let mut enter = Command::new("unshare");
        enter.args(["--mount", "--net", "--pid", "--fork", "--kill-child", "bash", "-c", ENTER]);
        enter.arg(&self.folder).args(words);
        enter.env("SERVER", &self.server).env("VARIABLES", &self.variables);
        enter.env("USERSPEC", self.user);
        let finished = enter.output().context("cannot start unshare")?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let printed = text(&finished.stdout);
        if !finished.status.success() {
            let errors = text(&finished.stderr);
            bail!("{}: {}:\n{printed}{errors}", words.join(" "), finished.status);
        }
        Ok(printed)
    }

    /// Fails if the root has a compiler or cargo.
    pub(super) fn has_no_compiler(&self) -> Result<()> {
        for tool in ["cc", "gcc", "rustc", "cargo"] {
            let found = self.path("/usr/bin").join(tool).exists();
            ensure!(!found, "the empty root has {tool}");
        }
        Ok(())
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        // Mounts of commands inside ended with their namespace. What cannot be removed stays below target.
        let _ = fs::remove_dir_all(&self.all);
    }
}
