//! nginx as a child process, to compare its answers with ours.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::executable::Running;
use super::{Deserted, eventually, skip};

/// Where Debian puts it.
const PROGRAM: &str = "/usr/sbin/nginx";

/// A running nginx with one worker.
pub(crate) struct Nginx {
    pub(crate) listen: SocketAddr,
    folder: PathBuf,
    _running: Running,
    _port: Deserted,
}

impl Nginx {
    /// Starts nginx with these directives in the sections `http` and `server`; `None` if it is not
    /// installed.
    pub(crate) fn start(http: &str, server: &str) -> Option<Nginx> {
        Nginx::listening("", http, server)
    }

    /// As [`Nginx::start`], with options of its `listen`.
    pub(crate) fn listening(options: &str, http: &str, server: &str) -> Option<Nginx> {
        if !Path::new(PROGRAM).is_file() {
            skip::missing("nginx is not installed: try cargo xtask test --install");
            return None;
        }
        let port = Deserted::port();
        let listen = port.address;
        let name = format!("nginx-{}-{}", std::process::id(), listen.port());
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&folder).expect("a folder can be made");
        let kinds = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
        let temporary = kinds.map(|kind| format!("{kind}_temp_path {kind};\n")).concat();
        let text = format!(
            "daemon off;\nmaster_process off;\npid nginx.pid;\nerror_log stderr crit;\n\
             events {{ worker_connections 100; }}\n\
             http {{\n{temporary}access_log off;\n{http}\n\
             server {{\nlisten {listen} {options};\n{server}\n}}\n}}\n"
        );
        let file = folder.join("nginx.conf");
        fs::write(&file, text).expect("a file can be written");
        let mut command = Command::new(PROGRAM);
        command.arg("-p").arg(&folder).arg("-c").arg(&file).args(["-e", "stderr"]);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut running = Running(command.spawn().expect("nginx starts"));
        eventually("nginx accepts", || {
            let ended = running.0.try_wait().expect("the child is ours");
            assert_eq!(ended, None, "nginx has ended");
            TcpStream::connect(listen).is_ok()
        });
        Some(Nginx { listen, folder, _running: running, _port: port })
    }

    /// A file that nginx has written in its folder.
    pub(crate) fn file(&self, name: &str) -> String {
        fs::read_to_string(self.folder.join(name)).unwrap_or_default()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}
