//! The server is killed at any moment and started again: every name that it has answered still leads where it led.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(file: &Path) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_durix-web-example"));
        let mut child = command.arg(file).arg("127.0.0.1:0").stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ").expect("an address").to_owned();
        Server { child, address }
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Status, headers and body of an answer; `None` where the server died before it was whole.
fn ask(address: &str, request: &str, body: &str) -> Option<(u16, String, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    let head = format!("{request} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all((head + body).as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let length = head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let status = head.split(' ').nth(1)?.parse().ok()?;
    (length == Some(body.len())).then(|| (status, head.to_owned(), body.to_owned()))
}

#[test]
fn what_was_answered_survives_kills() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("urls.durix");
    let answered = Mutex::new(Vec::new());
    for round in 0..4 {
        let Server { mut child, address } = Server::start(&file);
        std::thread::scope(|scope| {
            for client in 0..4 {
                let (address, answered) = (&address, &answered);
                scope.spawn(move || {
                    for n in 0.. {
                        let url = format!("https://example.org/{round}/{client}/{n}");
                        let Some((status, _, name)) = ask(address, "POST /", &url) else { return };
                        assert_eq!(status, 201, "{name}");
                        answered.lock().unwrap().push((name, url));
                    }
                });
            }
            let before = answered.lock().unwrap().len();
            while answered.lock().unwrap().len() < before + 40 {
                assert!(child.try_wait().unwrap().is_none(), "the server has ended by itself");
                std::thread::sleep(Duration::from_millis(5));
            }
            child.kill().unwrap();
            child.wait().unwrap();
        });
    }
    let server = Server::start(&file);
    let answered = answered.into_inner().unwrap();
    assert!(answered.len() >= 160);
    for (name, url) in &answered {
        let (status, head, _) = ask(&server.address, &format!("GET /{name}"), "").expect("an answer");
        assert_eq!(status, 307, "{name}");
        assert!(head.contains(&format!("location: {url}")), "{name} leads elsewhere: {head}");
    }
    let names: std::collections::HashSet<_> = answered.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), answered.len(), "a name was given twice");
    assert_eq!(ask(&server.address, "GET /fffffff", "").expect("an answer").0, 404);
    assert_eq!(ask(&server.address, "POST /", "no url").expect("an answer").0, 400);
    server.kill();
}
