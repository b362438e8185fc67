//! A chat goes on at another device in a client that begins anew: a real server and an ordinary client of
//! IRC, and commands as people type them.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/download.rs"]
mod download;

use std::fs;
use std::net::TcpStream;
use std::process::Command;

use common::{LIMIT, Process, World, dead_port, wait_for};
use download::Stage;
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

/// The only session, as a device is told of it.
fn session(world: &World, device: &str, ticket: &str) -> Value {
    let said = world.run(device, &["sessions", "--json", "--through", ticket]);
    let said: Value = serde_json::from_str(&said.succeeded().stdout).unwrap();
    assert_eq!(said["sessions"].as_array().unwrap().len(), 1, "{said}");
    said["sessions"][0].clone()
}

#[test]
fn a_chat_goes_on_in_a_client_that_registers_anew_and_the_server_hears_of_one() {
    let world = World::new();
    let at = dead_port();
    let (heard, first, second) = (world.path("heard"), world.path("first"), world.path("second"));
    let mut server = Command::new("python3");
    server.args(["-u", "-c", SERVER, &at.port().to_string()]).arg(&heard);
    let _server = Process::start(&mut server);
    // That is the first connection.
    wait_for("the server listens", || TcpStream::connect(at).ok());
    let [phone, desk] = ["phone", "desk"].map(|device| world.id(device));
    let serve = ["gateway", "serve", "--ticket", "--json", "--to", "127.0.0.1"];
    let mut gateway = world.start("gate", &[&serve[..], &["--allow", &phone, "--allow", &desk]].concat());
    let ticket = gateway.next_json()["ticket"].as_str().unwrap().to_owned();
    let through = ["proxy", "http", "--listen", "127.0.0.1:0", "--json", "--through", &ticket];
    let mut proxy = world.start("phone", &through);
    let listening = proxy.next_json()["listening"].as_str().unwrap().to_owned();
    let mut client = Command::new("python3");
    client.args(["-u", "-c", CLIENT, "127.0.0.1", &at.port().to_string(), "ada", "split"]);
    let mut client = Process::start(client.arg(&first).env("IRC_PROXY", listening));
    wait_for("a part of a line", || {
        let seen = fs::read(&first).unwrap_or_default();
        seen.ends_with(b" PRIVMSG #room :one ").then_some(())
    });

    let id = session(&world, "phone", &ticket)["id"].as_str().unwrap().to_owned();
    world.run("phone", &["handoff", &id, "--to", &desk, "--through", &ticket]).succeeded();
    let to = second.to_str().unwrap();
    let take = ["take", &id, "--through", &ticket, "--as", "line", "--"];
    // The flags that each command of a test gets are behind what the client looks at.
    let program = ["python3", "-u", "-c", CLIENT, "{host}", "{port}", "bob", "hello", to];
    world.run("desk", &[&take[..], &program].concat()).succeeded();
    client.finish(LIMIT).succeeded();

    let expected = "\
        :irc.test NOTICE * :*** Looking up your hostname\r\n\
        :irc.test CAP * LS :\r\n\
        :irc.test 001 ada :Welcome\r\n\
        :irc.test 375 ada :-\r\n\
        :irc.test 372 ada :- hello\r\n\
        :irc.test 376 ada :End\r\n\
        :bot!b@irc.test PRIVMSG #room :one line\r\n\
        :bot!b@irc.test PRIVMSG #room :heard hello\r\n";
    assert_eq!(fs::read_to_string(&second).unwrap(), expected);
    let expected = "\
        2 CAP LS 302\n2 NICK ada\n2 USER ada 0 * :ada\n2 CAP END\n2 PRIVMSG #room :split\n\
        2 PRIVMSG #room :hello\n2 QUIT\n";
    assert_eq!(fs::read_to_string(&heard).unwrap(), expected, "one registration, on one connection");
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
