//! The package of npm (`packages/node`): its own tests by `node --test`, upon the addon and upon uWebSockets.js, which
//! they describe; its types; and what an empty project gets of its tarballs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::harness::peer::{self, Runtime};
use crate::harness::{executable, skip};

/// uWebSockets.js, whose binary is that of one version of Node.js and glibc.
const ORIGINAL: &str = "@uwsjs/linux-x64-20";

const TYPESCRIPT: Runtime = Runtime {
    program: "node",
    check: &["-e", "require.resolve('typescript'); require.resolve('@types/node/package.json')"],
};

/// A test for each file in `packages/node/test`, upon the addon and upon uWebSockets.js.
macro_rules! files {
    ($($file:ident)*) => {
        mod addon {
            $(#[test]
            fn $file() {
                super::passes(stringify!($file), None);
            })*
        }
        mod original {
            $(#[test]
            fn $file() {
                super::passes(stringify!($file), Some(super::ORIGINAL));
            })*
        }

        #[test]
        fn every_file_is_here() {
            let mut files: Vec<String> = fs::read_dir(source().join("test")).unwrap()
                .filter_map(|entry| entry.unwrap().file_name().into_string().unwrap().strip_suffix(".test.js").map(str::to_owned))
                .collect();
            files.sort();
            let mut named = vec![$(stringify!($file)),*];
            named.sort();
            assert_eq!(files, named);
        }
    };
}

files!(surface arguments http cached adopt proxied websocket limits pubsub shared brokers history history_brokers workers workers_http compression tls key_value misuse children server ws);

/// Runs a file of tests; its failures are shown.
fn passes(file: &str, module: Option<&str>) {
    if !peer::is_here(&peer::NODE, "the tests of packages/node") {
        return;
    }
    let folder = match module {
        // Installed for its platform alone.
        Some(module) if !peers().join(module).exists() => {
            return skip::unsupported(&format!("{module} is not for this machine"));
        }
        Some(_) => source(),
        None => match package() {
            Some(folder) => folder.clone(),
            None => return,
        },
    };
    let mut node = node(&folder, &["--test", "--test-reporter=spec"]);
    node.arg(format!("test/{file}.test.js")).env("UWS_MODULE", module.unwrap_or_default());
    run(&mut node);
}

/// Programs from npm that depend on uWebSockets.js, with this package in its place.
#[test]
fn programs_of_uwebsockets() {
    let Some(folder) = package() else { return };
    let expected = [
        "socket.io by websocket",
        "socket.io by polling",
        "socket.io by polling and websocket",
        "hyper-express requests",
        "hyper-express sockets",
        "ultimate-express requests",
        "crossws",
    ];
    let folder = folder.to_str().expect("the folder's path is text");
    peer::works(&peer::NODE, "node_consumers.js", &[folder], &expected);
}

/// Handlers and clients that do anything, threads that end in the middle of it, and memory by many messages.
#[test]
fn anything_is_survived() {
    let Some(folder) = package() else { return };
    let folder = folder.to_str().expect("the folder's path is text");
    peer::works(&peer::NODE, "node_fuzz.js", &[folder], &["anything", "flat memory"]);
}

#[test]
fn types_are_those_of_programs() {
    let Some(folder) = package() else { return };
    if !peer::is_here(&TYPESCRIPT, "the types of packages/node") {
        return;
    }
    let project = scratch("types");
    for name in ["sample.mts", "tsconfig.json"] {
        fs::copy(folder.join("test/types").join(name), project.join(name)).unwrap();
    }
    // As installed.
    let modules = project.join("node_modules");
    fs::create_dir_all(modules.join("@types")).unwrap();
    std::os::unix::fs::symlink(folder, modules.join("standfast")).unwrap();
    for name in ["@types/node", "undici-types"] {
        std::os::unix::fs::symlink(peers().join(name), modules.join(name)).unwrap();
    }
    let compiler = peers().join("typescript/bin/tsc");
    run(&mut node(&project, &[compiler.to_str().unwrap(), "--preserveSymlinks", "-p", "."]));
}

/// `npm pack` of `standfast` and of its addon for this machine, installed without scripts and without a network: by
/// `require`, by `import`, and for a package that wants uWebSockets.js.
#[test]
fn tarballs_in_an_empty_project() {
    let Some(folder) = package() else { return };
    let cpu = if cfg!(target_arch = "x86_64") { "x64" } else { "arm64" };
    let name = format!("@standfast/node-linux-{cpu}-gnu");
    let tarballs = scratch("tarballs");
    let stage = scratch("stage");
    let addon = stage.join("addon");
    fs::create_dir_all(&addon).unwrap();
    fs::copy(folder.join("standfast.node"), addon.join("standfast.node")).unwrap();
    let manifest = serde_json::json!({ "name": name, "version": "0.0.0", "libc": ["glibc"] });
    fs::write(addon.join("package.json"), manifest.to_string()).unwrap();
    let wants = stage.join("wants");
    fs::create_dir_all(&wants).unwrap();
    let manifest = serde_json::json!({
        "name": "wants", "version": "1.0.0",
        "dependencies": { "uWebSockets.js": "github:uNetworking/uWebSockets.js#v20.51.0" },
    });
    fs::write(wants.join("package.json"), manifest.to_string()).unwrap();
    fs::write(wants.join("index.js"), "module.exports = require('uWebSockets.js');").unwrap();
    // Without the file of a build, as it is published.
    let main = stage.join("main");
    run(Command::new("cp").arg("-r").arg(folder).arg(&main));
    fs::remove_file(main.join("standfast.node")).unwrap();
    for packed in [&addon, &wants, &main] {
        run(npm(packed).args(["pack", "--pack-destination"]).arg(&tarballs));
    }
    let file = |name: &str| format!("file:{}", tarballs.join(name).display());
    let project = scratch("project");
    let own = file("standfast-0.0.0.tgz");
    let manifest = serde_json::json!({
        "private": true,
        "dependencies": {
            "standfast": own,
            &name: file(&format!("standfast-node-linux-{cpu}-gnu-0.0.0.tgz")),
            "wants": file("wants-1.0.0.tgz"),
        },
        "overrides": { "uWebSockets.js": own },
    });
    fs::write(project.join("package.json"), manifest.to_string()).unwrap();
    run(npm(&project).args(["install", "--ignore-scripts", "--omit=optional"]));
    let program = "
        import { App, Server, WebSocketServer, us_socket_local_port } from 'standfast';
        import uws from 'standfast';
        import Socket, { WebSocketServer as Same } from 'standfast/ws';
        import { createRequire } from 'node:module';
        const require = createRequire(import.meta.url);
        const checks = [
          require('standfast') === uws, Same === WebSocketServer, Socket.Server === Same, typeof Server === 'function',
          typeof require('wants').App === 'function',
        ];
        if (!checks.every(Boolean)) throw new Error(checks.join());
        const app = App().get('/*', (res) => res.end('hello'));
        app.listen('127.0.0.1', 0, async (listener) => {
          const answer = await fetch(`http://127.0.0.1:${us_socket_local_port(listener)}/`);
          console.log(await answer.text());
          app.close();
          process.exit(0);
        });";
    fs::write(project.join("program.mjs"), program).unwrap();
    let output = run(node(&project, &["program.mjs"]).env_remove("NODE_PATH"));
    assert_eq!(output, "hello\n");
    let listed = run(npm(&main).args(["pack", "--dry-run", "--json"]));
    for absent in ["native/", "test/", "build.sh", "standfast.node"] {
        assert!(!listed.contains(&format!("\"path\": \"{absent}")), "{absent} is published");
    }
}

/// Other platforms, and an installation without optional dependencies, get an error that says so.
#[test]
fn missing_addon_is_told() {
    if !peer::is_here(&peer::NODE_ALONE, "the tests of packages/node") {
        return;
    }
    let told = |platform: &str| {
        let program = format!(
            "Object.defineProperty(process, 'platform', {{ value: '{platform}' }});
             try {{ require('{}'); }} catch (error) {{ console.log(error.message); }}",
            scratch_loader().display()
        );
        run(&mut node(&source(), &["-e", &program]))
    };
    assert!(told("darwin").contains("does not support darwin-"), "{}", told("darwin"));
    assert!(told("win32").contains("linux-x64 and linux-arm64"), "{}", told("win32"));
    let missing = told("linux");
    assert!(
        missing.contains("is not installed") && missing.contains("--omit=optional"),
        "{missing}"
    );
}

/// The loader alone, where no addon is.
fn scratch_loader() -> PathBuf {
    let folder = scratch("loader").join("lib");
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("addon.js");
    fs::copy(source().join("lib/addon.js"), &file).unwrap();
    file
}

/// The package with the addon that was built beside the executable.
fn package() -> Option<&'static PathBuf> {
    static PACKAGE: OnceLock<Option<PathBuf>> = OnceLock::new();
    let prepare = || {
        let addon = PathBuf::from(executable::path()).parent()?.join("libstandfast_node.so");
        if !addon.exists() {
            skip::missing("the addon is not built: cargo build --package standfast-node");
            return None;
        }
        let folder = scratch("package");
        for entry in fs::read_dir(source()).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name();
            if !["native", "standfast.node"].contains(&name.to_str().unwrap()) {
                run(Command::new("cp").arg("-r").arg(entry.path()).arg(&folder));
            }
        }
        fs::copy(addon, folder.join("standfast.node")).unwrap();
        Some(folder)
    };
    PACKAGE.get_or_init(prepare).as_ref()
}

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("packages/node")
}

fn peers() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(".peers/node_modules")
}

/// An empty folder, made anew for each run of the tests.
fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("node-package").join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn node(folder: &Path, args: &[&str]) -> Command {
    let mut node = Command::new("node");
    node.args(args).current_dir(folder).env("NODE_PATH", peers()).env_remove("NODE_TEST_CONTEXT");
    node
}

fn npm(folder: &Path) -> Command {
    let mut npm = Command::new("npm");
    npm.args(["--offline", "--no-audit", "--no-fund"]).current_dir(folder);
    npm
}

/// Runs a command that must succeed, and returns its standard output.
fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().expect("the program starts");
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{stdout}{stderr}", output.status);
    stdout
}
