//! `cargo xtask dist --check`: each package is installed where nothing else is, as its users do, and must hold
//! sockets there. The executable of another processor runs under qemu's user mode.
//!
//! Not checked here: systemd (`tests/systemd.rs` runs the units' commands), and container engines.

mod addons;
mod foreign;
mod registry;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::addon::Addon;
use super::roots::{self, Root};
use super::tools::Tools;
use super::{Built, VERSION, archive, image, output};
use registry::Registry;

/// From the first byte that is installed to the verdict.
const TIME_MAX: Duration = Duration::from_secs(60);

/// What users of npm and PyPI have; in one root, as it takes half a minute to make.
const INTERPRETERS: [&str; 2] = ["nodejs", "python3"];

/// A usage error is 2, SIGTERM drains the server, and without the executable the launcher says so.
const LAUNCHED: &str = r#"
set -ex
npm install --global standfast
standfast prove --connections x && exit 1 || test $? = 2
standfast serve --listen 127.0.0.1:0 --admin off 2> /log &
until grep -q listening /log; do kill -0 $! && sleep 0.1; done
kill -TERM $!
wait $!
grep draining /log
rm -r "$(npm root --global)/standfast/node_modules/@standfast"
standfast --version 2> /log && exit 1 || test $? = 2
grep 'is not installed' /log
"#;

/// The API from an empty project, without scripts: a server with an echo, and a client in a few lines.
const REQUIRED: &str = r#"
set -ex
mkdir /project && cd /project
npm install --ignore-scripts standfast
cat > echo.js << 'END'
const { App, us_socket_local_port } = require('standfast');
const { WebSocketServer } = require('standfast/ws');
const app = App().get('/*', (res) => res.end(typeof WebSocketServer));
app.listen('127.0.0.1', 0, (listener) => {
  require('node:http').get({ port: us_socket_local_port(listener), host: '127.0.0.1' }, (res) => {
    res.on('data', (data) => { console.log('answered ' + data); process.exit(0); });
  });
});
END
node echo.js | grep 'answered function'
"#;

/// How many sockets an installed package has to hold, and for how long.
pub(super) struct Goal {
    pub(super) connections: u64,
    /// For the suite: seconds instead of half a minute, and no limit on the time.
    pub(super) brief: bool,
}

/// What the checks need.
struct Checks<'a> {
    goal: Goal,
    tools: &'a Tools,
    dist: &'a Path,
}

/// What this machine lacks for the checks.
pub(super) fn lacks() -> Option<String> {
    roots::lacks()
}

/// Runs all checks and prints their results as libtest does. Whether none failed.
pub(super) fn run(
    builds: &[Built],
    addons: &[Addon],
    goal: Goal,
    tools: &Tools,
    dist: &Path,
) -> Result<bool> {
    if let Some(missing) = lacks() {
        anyhow::bail!(missing);
    }
    let checks = Checks { goal, tools, dist };
    let mut results = Results::default();
    println!("\n=== packages, installed");
    for built in builds {
        let triple = built.target.triple;
        if built.is_native() {
            results.add("archive", || checks.archive(built));
            results.add("Debian package", || checks.debian_package(built));
            results.add("wheel by uvx", || checks.wheel_by_uvx());
            results.add("wheel by pip", || checks.wheel_by_pip(built));
            results.add("npm package by npx and require", || checks.npm_package());
            results.add("container image", || checks.image(built));
        } else if foreign::emulator(built.target).is_some() {
            results.add(&format!("{triple} under qemu"), || foreign::run(built, dist));
        } else {
            println!("{triple}: not run, qemu is missing: apt-get install qemu-user-static");
            results.ignored += 1;
        }
        results
            .add(&format!("architecture of packages for {triple}"), || checks.architectures(built));
    }
    if !checks.goal.brief {
        results.add_addons(addons, tools, dist);
    }
    Ok(results.finish())
}

/// As [`run`], of the addon of Node.js alone.
pub(super) fn addons_only(addons: &[Addon], tools: &Tools, dist: &Path) -> bool {
    let mut results = Results::default();
    results.add_addons(addons, tools, dist);
    results.finish()
}

#[derive(Default)]
struct Results {
    passed: u32,
    failed: u32,
    ignored: u32,
}

impl Results {
    /// Runs a check and prints its result.
    fn add(&mut self, name: &str, check: impl FnOnce() -> Result<Option<Duration>>) {
        let started = Instant::now();
        let result = check();
        let name = format!("dist::{}", name.replace(' ', "_"));
        match &result {
            Ok(Some(took)) => println!(
                "test {name} ... ok <{:.3}s>, {:.1} s from installation to verdict",
                started.elapsed().as_secs_f64(),
                took.as_secs_f64()
            ),
            Ok(None) => println!("test {name} ... ok <{:.3}s>", started.elapsed().as_secs_f64()),
            Err(error) => println!("{error:#}\ntest {name} ... FAILED"),
        }
        match result {
            Ok(_) => self.passed += 1,
            Err(_) => self.failed += 1,
        }
    }

    /// Not in the suite, for which `tests/node_package.rs` tries that of this machine: the builds take minutes.
    fn add_addons(&mut self, addons: &[Addon], tools: &Tools, dist: &Path) {
        for addon in addons {
            let name = format!("addon for {} {}", addon.target.machine, addon.libc.npm);
            self.add(&name, || addons::run(addon, addons, tools, dist));
        }
    }

    /// Prints the line that the suite counts.
    fn finish(&self) -> bool {
        let (Results { passed, failed, ignored }, verdict) =
            (self, if self.failed == 0 { "ok" } else { "FAILED" });
        println!("\ntest result: {verdict}. {passed} passed; {failed} failed; {ignored} ignored");
        self.failed == 0
    }
}

impl Checks<'_> {
    /// Unpacked by `tar`, run where it is.
    fn archive(&self, built: &Built) -> Result<Option<Duration>> {
        let root = self.root("archive", &[])?;
        let name = archive::name(built.target.triple);
        let file = root.give(&self.dist.join(format!("{name}.tar.gz")))?;
        let started = Instant::now();
        root.run(&["tar", "-xzf", &file])?;
        self.proved(&root, &[&format!("/{name}/standfast")], started)
    }

    /// Installed and removed by apt, which leaves nothing.
    fn debian_package(&self, built: &Built) -> Result<Option<Duration>> {
        let root = self.root("deb", &[])?;
        let file = root.give(&deb_of(self.dist, built)?)?;
        let started = Instant::now();
        root.run(&["apt-get", "install", "--yes", "--no-install-recommends", &file])?;
        let proved = self.proved(&root, &["standfast"], started)?;
        for unit in ["standfast", "standfast-proxy"] {
            let unit = format!("/lib/systemd/system/{unit}.service");
            let text = fs::read_to_string(root.path(&unit)).with_context(|| unit.clone())?;
            ensure!(text.contains("\nExecStart=/usr/bin/standfast "), "{unit} starts another file");
            ensure!(!text.contains("/usr/local/bin"), "{unit} names a path of other packages");
        }
        let listed = root.run(&["dpkg", "--listfiles", "standfast"])?;
        for file in
            ["man1/standfast-prove.1.gz", "completions/standfast", "doc/standfast/copyright"]
        {
            ensure!(listed.contains(file), "{file} is not installed:\n{listed}");
        }
        root.run(&["apt-get", "purge", "--yes", "standfast"])?;
        for file in listed.lines().filter(|file| file.contains("standfast")) {
            ensure!(!root.path(file).exists(), "{file} is left after apt-get purge");
        }
        Ok(proved)
    }

    /// `uvx standfast`, from an index.
    fn wheel_by_uvx(&self) -> Result<Option<Duration>> {
        let registry = Registry::write(self.dist)?;
        let root = self.root("uvx", &INTERPRETERS)?;
        for tool in ["uv", "uvx"] {
            fs::copy(self.tools.path(tool), root.path("/usr/local/bin").join(tool))?;
        }
        let root =
            root.with_registry(&registry.folder, &["UV_DEFAULT_INDEX=http://127.0.0.1/simple"]);
        self.proved(&root, &["uvx", "standfast"], Instant::now())
    }

    /// pip takes the wheel for this machine, and its record agrees with its files.
    fn wheel_by_pip(&self, built: &Built) -> Result<Option<Duration>> {
        let root = Root::empty("pip")?;
        let mut pip = Command::new(self.tools.path("pip"));
        pip.args(["install", "--disable-pip-version-check", "--no-index", "--find-links"]);
        output(pip.arg(self.dist).arg("--prefix").arg(root.path("/usr")).arg("standfast"))?;
        let printed = root.run(&["/usr/bin/standfast", "--version"])?;
        ensure!(printed.trim() == format!("standfast {VERSION}"), "{printed}");
        ensure!(built.is_native(), "pip takes wheels of this machine");
        Ok(None)
    }

    /// `npx standfast`, from a registry; and what its launcher does with exit codes, signals and a missing executable.
    fn npm_package(&self) -> Result<Option<Duration>> {
        let registry = Registry::write(self.dist)?;
        let root = self.root("npx", &INTERPRETERS)?;
        registry::install_npm(&root)?;
        let root = root.with_registry(&registry.folder, &["npm_config_registry=http://127.0.0.1/"]);
        let proved = self.proved(&root, &["npx", "--yes", "standfast"], Instant::now())?;
        root.run(&["bash", "-c", REQUIRED]).context("the API of the npm package")?;
        root.run(&["bash", "-c", LAUNCHED]).context("the launcher of npm")?;
        Ok(proved)
    }

    /// Unpacked by umoci, which follows and checks the digests, and run as its user.
    fn image(&self, built: &Built) -> Result<Option<Duration>> {
        let root = Root::empty("image")?;
        let bundle = root.path("/bundle");
        let mut umoci = Command::new("umoci");
        let reference = image::reference(built.target.oci);
        umoci.args(["unpack", "--image"]);
        umoci.arg(format!("{}:{reference}", image::layout(self.dist).display())).arg(&bundle);
        output(&mut umoci).context("apt-get install umoci")?;
        let config: Value = serde_json::from_slice(&fs::read(bundle.join("config.json"))?)?;
        let process = &config["process"];
        ensure!(process["args"] == serde_json::json!(["/standfast", "serve"]), "{process}");
        ensure!(process["user"]["uid"] == 65534 && process["user"]["gid"] == 65534, "{process}");
        let rootfs = bundle.join("rootfs");
        let files: Vec<String> = fs::read_dir(&rootfs)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<Result<_>>()?;
        ensure!(files.len() == 4, "the executable and three files of licences: {files:?}");
        for mount_point in ["proc", "dev"] {
            fs::create_dir(rootfs.join(mount_point))?;
        }
        let root = root.below(rootfs, "--userspec=65534:65534");
        self.proved(&root, &["/standfast"], Instant::now())
    }

    /// The packages name the processor of the executable in them.
    fn architectures(&self, built: &Built) -> Result<Option<Duration>> {
        let target = built.target;
        let deb = deb_of(self.dist, built)?;
        let field =
            output(Command::new("dpkg-deb").args(["--field"]).arg(&deb).arg("Architecture"))?;
        ensure!(field.trim() == target.debian, "{}: {field}", deb.display());
        let layout = image::layout(self.dist);
        let index: Value = serde_json::from_slice(&fs::read(layout.join("index.json"))?)?;
        let manifests = index["manifests"].as_array().context("manifests")?;
        let named = manifests.iter().find(|manifest| {
            manifest["annotations"]["org.opencontainers.image.ref.name"]
                == image::reference(target.oci)
        });
        let named = named.with_context(|| format!("no image for {}", target.oci))?;
        let blob = |descriptor: &Value| -> Result<Value> {
            let digest = descriptor["digest"].as_str().context("a digest")?.replace(':', "/");
            Ok(serde_json::from_slice(&fs::read(layout.join("blobs").join(digest))?)?)
        };
        let config = blob(&blob(named)?["config"])?;
        ensure!(config["architecture"] == target.oci, "{config}");
        Ok(None)
    }

    /// A Debian 12 with these packages, without a compiler.
    fn root(&self, name: &str, packages: &[&str]) -> Result<Root> {
        let root = Root::unpack(&roots::debian(packages)?, name)?;
        root.has_no_compiler()?;
        Ok(root)
    }

    /// Runs `prove` and checks its result. Returns the time since `started`.
    fn proved(&self, root: &Root, program: &[&str], started: Instant) -> Result<Option<Duration>> {
        let connections = self.goal.connections.to_string();
        let prove = ["prove", "--connections", &connections, "--json", "-"];
        let brief: &[&str] =
            if self.goal.brief { &["--hold", "1s", "--heartbeat", "1s"] } else { &[] };
        let printed = root.run(&[program, &prove, brief].concat())?;
        let took = started.elapsed();
        let report: Value = serde_json::from_str(&printed).with_context(|| printed.clone())?;
        let open = &report["connections"]["open"];
        ensure!(*open == self.goal.connections, "{open} of {connections} sockets are open");
        ensure!(self.goal.brief || took <= TIME_MAX, "it took {took:?}, more than {TIME_MAX:?}");
        Ok(Some(took))
    }
}

/// The Debian package; its name has the revision of the packaging.
fn deb_of(dist: &Path, built: &Built) -> Result<PathBuf> {
    let file = dist.join(super::deb::file_name(built.target));
    ensure!(file.exists(), "{} is missing", file.display());
    Ok(file)
}
