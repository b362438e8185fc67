//! A chat goes on at another device in a client that begins anew: a real server and an ordinary client of
//! IRC, and commands as people type them.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::net::TcpStream;
use std::process::Command;

use crate::common::{LIMIT, Process, World, dead_port, wait_for};
use crate::download::Stage;
use serde_json::Value;

/// A small server of IRC. It writes down what each connection says. What it is asked to split it says in two
/// parts, the second once it has heard something else.
const SERVER: &str = r#"
import socket, sys, threading

def serve(number, connection, heard):
    def say(text):
        connection.sendall(text.encode())
    say(":irc.test NOTICE * :*** Looking up your hostname\r\n")
    nick, has_user, is_asking, is_welcome, is_split = None, False, False, False, False
    for line in connection.makefile("r"):
        line = line.rstrip("\r\n")
        heard.write(f"{number} {line}\n")
        command, _, rest = line.partition(" ")
        if command == "CAP":
            is_asking = rest != "END"
            if is_asking:
                say(":irc.test CAP * LS :multi-prefix\r\n")
        elif command == "NICK":
            nick = rest
        elif command == "USER":
            has_user = True
        elif command == "PRIVMSG":
            if is_split:
                say("line\r\n")
            text = rest.partition(" :")[2]
            say(f":bot!b@irc.test PRIVMSG #room :heard {text}\r\n")
            is_split = text == "split"
            if is_split:
                say(":bot!b@irc.test PRIVMSG #room :one ")
        elif command == "QUIT":
            break
        if nick and has_user and not is_asking and not is_welcome:
            is_welcome = True
            for number_and_text in ["001 {} :Welcome", "375 {} :-", "372 {} :- hello", "376 {} :End"]:
                say(":irc.test " + number_and_text.format(nick) + "\r\n")
    connection.shutdown(socket.SHUT_RDWR)

with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as server, open(sys.argv[2], "w", 1) as heard:
    number = 0
    while True:
        connection, _ = server.accept()
        number += 1
        threading.Thread(target=serve, args=(number, connection, heard), daemon=True).start()
"#;

/// A client as others are: it registers, says something in a room, and quits when that was heard.
const CLIENT: &str = r#"
import os, socket, sys

host, port, nick, text, seen = sys.argv[1:6]
if proxy := os.environ.get("IRC_PROXY"):
    at, _, number = proxy.rpartition(":")
    connection = socket.create_connection((at, int(number)))
    connection.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        if not byte:
            sys.exit("the proxy hung up")
        head += byte
else:
    connection = socket.create_connection((host, int(port)))
connection.sendall(f"CAP LS 302\r\nNICK {nick}\r\nUSER {nick} 0 * :{nick}\r\n".encode())
with open(seen, "wb", 0) as seen:
    rest = b""
    while True:
        try:
            data = connection.recv(4096)
        except ConnectionResetError:
            break
        if not data:
            break
        seen.write(data)
        *lines, rest = (rest + data).split(b"\r\n")
        for line in lines:
            if b" CAP " in line:
                connection.sendall(b"CAP END\r\n")
            elif b" 376 " in line:
                connection.sendall(f"PRIVMSG #room :{text}\r\n".encode())
            elif b"heard hello" in line:
                connection.sendall(b"QUIT\r\n")
"#;

/// A chat of a phone through a gateway, which is in the middle of a line, and which the desk may take.
struct Chat {
    world: World,
    ticket: String,
    client: Process,
    _running: [Process; 3],
}

impl Chat {
    fn new() -> Self {
        let world = World::new();
        let (at, first) = (dead_port(), world.path("first"));
        let mut server = Command::new("python3");
        server.args(["-u", "-c", SERVER, &at.port().to_string()]).arg(world.path("heard"));
        let server = Process::start(&mut server);
        // That is the first connection.
        wait_for("the server listens", || TcpStream::connect(at).ok());
        fs::write(world.path("client.py"), CLIENT).unwrap();
        let [phone, desk] = ["phone", "desk"].map(|device| world.id(device));
        let serve = ["gateway", "serve", "--ticket", "--json", "--to", "127.0.0.1", "--allow", &phone];
        let mut gateway = world.start("gate", &[&serve[..], &["--allow", &desk]].concat());
        let ticket = gateway.next_json()["ticket"].as_str().unwrap().to_owned();
        let through = ["proxy", "http", "--listen", "127.0.0.1:0", "--json", "--through", &ticket];
        let mut proxy = world.start("phone", &through);
        let listening = proxy.next_json()["listening"].as_str().unwrap().to_owned();
        let mut client = Command::new("python3");
        client.arg("-u").arg(world.path("client.py"));
        client.args(["127.0.0.1", &at.port().to_string(), "ada", "split"]).arg(&first);
        let client = Process::start(client.env("IRC_PROXY", listening));
        wait_for("a part of a line", || {
            let seen = fs::read(&first).unwrap_or_default();
            seen.ends_with(b" PRIVMSG #room :one ").then_some(())
        });
        Self { world, ticket, client, _running: [server, gateway, proxy] }
    }

    /// The phone lets the desk take it. Returns what it is called.
    fn hand_over(&self) -> String {
        let said = self.world.run("phone", &["sessions", "--json", "--through", &self.ticket]);
        let said: Value = serde_json::from_str(&said.succeeded().stdout).unwrap();
        assert_eq!(said["sessions"].as_array().unwrap().len(), 1, "{said}");
        let id = said["sessions"][0]["id"].as_str().unwrap().to_owned();
        let to = self.world.id("desk");
        self.world.run("phone", &["handoff", &id, "--to", &to, "--through", &self.ticket]).succeeded();
        id
    }

    /// The client of the desk, which has another name.
    fn second(&self) -> Vec<String> {
        let path = |name: &str| self.world.path(name).to_str().unwrap().to_owned();
        let words = ["{host}", "{port}", "bob", "hello"].map(str::to_owned);
        let python = ["python3".to_owned(), "-u".to_owned(), path("client.py")];
        python.into_iter().chain(words).chain([path("second")]).collect()
    }

    /// It went on in the second client: that is as if it had registered, and has whole lines.
    fn went_on(mut self) {
        self.client.finish(LIMIT).succeeded();
        let expected = "\
            :irc.test NOTICE * :*** Looking up your hostname\r\n\
            :irc.test CAP * LS :\r\n\
            :irc.test 001 ada :Welcome\r\n\
            :irc.test 375 ada :-\r\n\
            :irc.test 372 ada :- hello\r\n\
            :irc.test 376 ada :End\r\n\
            :bot!b@irc.test PRIVMSG #room :one line\r\n\
            :bot!b@irc.test PRIVMSG #room :heard hello\r\n";
        assert_eq!(fs::read_to_string(self.world.path("second")).unwrap(), expected);
        let expected = "\
            2 CAP LS 302\n2 NICK ada\n2 USER ada 0 * :ada\n2 CAP END\n2 PRIVMSG #room :split\n\
            2 PRIVMSG #room :hello\n2 QUIT\n";
        let heard = fs::read_to_string(self.world.path("heard")).unwrap();
        assert_eq!(heard, expected, "one registration, on one connection");
    }
}

#[test]
fn a_chat_goes_on_in_a_client_that_registers_anew_and_the_server_hears_of_one() {
    let chat = Chat::new();
    let (id, second) = (chat.hand_over(), chat.second());
    let take = ["take", &id, "--through", &chat.ticket, "--as", "line", "--"];
    // The flags that each command of a test gets are behind what the client looks at.
    let second = second.iter().map(String::as_str);
    let words: Vec<&str> = take.into_iter().chain(second).collect();
    chat.world.run("desk", &words).succeeded();
    chat.went_on();
}

#[test]
fn an_agent_starts_a_client_that_begins_a_chat_anew() {
    let chat = Chat::new();
    let entry = "ask = false\n[[app]]\nmatch = \"127.0.0.0/8\"\nadapter = \"line\"\n";
    // An array of TOML is one of Rust, of words as these.
    let list = format!("{entry}run = {:?}\n", chat.second());
    fs::write(chat.world.config("desk", "apps.toml"), list).unwrap();
    let phone = chat.world.id("phone");
    let agent = ["agent", "--json", "--through", &chat.ticket, "--from", &phone];
    let mut agent = chat.world.start("desk", &agent);
    chat.hand_over();
    let ended = loop {
        let said = agent.next_json();
        assert_ne!(said["event"], "left", "{said}");
        if said["event"] == "ended" {
            break said;
        }
    };
    assert_eq!((&ended["how"], &ended["code"]), (&"ended".into(), &0.into()), "{ended}");
    chat.went_on();
}

/// A program that connects, and reads until an end.
const READER: &str = "
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as source:
    while source.recv(65536):
        pass
";

#[test]
fn a_session_that_is_no_chat_is_not_taken_as_one_and_stays_where_it_is() {
    let mut stage = Stage::new(Some("desk"));
    let id = stage.session("desk")["id"].as_str().unwrap().to_owned();
    let take = ["take", &id, "--through", &stage.ticket, "--as", "line", "--"];
    let program = ["python3", "-c", READER, "{host}", "{port}"];
    let refused = stage.world.run("desk", &[&take[..], &program].concat());
    refused.failed(5, &["how the session began is not known"]);
    wait_for("the phone goes on", || (stage.session("phone")["standing"] == "live").then_some(()));
    stage.go();
    stage.curl.finish(LIMIT).succeeded();
}
