//! Every example in the help of every command and in README is run, as it is written there. `Play::words`
//! says what stands for the names of others in it. An example that is not in this play fails the test, and so
//! does one of the play that no text has any more.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::stage::{self, LIMIT, PROGRAM, Running, Stage};

const README: &str = include_str!("../../../README.md");

fn help(command: &[String]) -> String {
    let output = Command::new(PROGRAM).args(command).arg("--help").output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

/// An example's line without what explains it.
fn bare(line: &str) -> &str {
    let line = line.trim();
    if line.starts_with('#') {
        return "";
    }
    line.split("   ").next().unwrap_or_default().split("  #").next().unwrap_or_default().trim()
}

/// The examples of all commands.
fn of_help() -> BTreeSet<String> {
    let (mut found, mut left) = (BTreeSet::new(), vec![Vec::new()]);
    while let Some(command) = left.pop() {
        let text = help(&command);
        let below = |heading: &str| {
            let lines = text.lines().skip_while(|line| !line.starts_with(heading)).skip(1);
            lines.take_while(|line| !line.is_empty()).map(str::to_owned).collect::<Vec<_>>()
        };
        for line in below("Example") {
            let line = line.strip_prefix("then: ").unwrap_or(&line);
            // `At home:   whimbrel …`
            let line = line.trim().split_once(":  ").map_or(line, |(_, example)| example);
            found.insert(bare(line).to_owned());
        }
        for line in below("Commands:").iter().filter(|line| !line.starts_with("   ")) {
            let name = line.split_whitespace().next().unwrap().to_owned();
            left.push([&command[..], &[name]].concat());
        }
    }
    found
}

/// The lines of README's blocks for the shell.
fn of_readme() -> BTreeSet<String> {
    let blocks = README.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    blocks.flat_map(str::lines).map(|line| bare(line).to_owned()).filter(|line| !line.is_empty()).collect()
}

/// Runs examples, and remembers which.
struct Play {
    /// Before the stage, so that they are stopped while their machines are there.
    running: Vec<(String, Running)>,
    stage: Stage,
    /// What a reader puts in the place of words in the examples.
    words: Vec<(String, String)>,
    seen: BTreeSet<String>,
}

impl Play {
    fn word(&mut self, word: &str, value: impl Into<String>) {
        self.words.retain(|(known, _)| known != word);
        self.words.push((word.to_owned(), value.into()));
    }

    fn script(&self, example: &str) -> String {
        let mut words: Vec<_> = self.words.iter().collect();
        // The longer first: `LAPTOP-ID` has an `ID` in it.
        words.sort_by_key(|(word, _)| std::cmp::Reverse(word.len()));
        // Each where it stands in the example: the name of a directory may have an `ID` in it.
        let (mut text, mut rest) = (String::new(), example);
        while let Some(next) = rest.chars().next() {
            let known = words.iter().find(|(word, _)| rest.starts_with(word));
            let (length, put) =
                known.map_or((next.len_utf8(), None), |(word, value)| (word.len(), Some(value)));
            text.push_str(put.map_or(&rest[..length], String::as_str));
            rest = &rest[length..];
        }
        text
    }

    /// Runs an example that ends by itself, and returns what it says.
    #[track_caller]
    fn run(&mut self, host: &str, example: &str, says: &str) -> String {
        self.seen.insert(example.to_owned());
        self.also(host, &self.script(example), says)
    }

    /// Runs something that is no example.
    #[track_caller]
    fn also(&self, host: &str, script: &str, says: &str) -> String {
        let (code, lines) = self.stage.start(host, script).finish();
        let text = lines.join("\n");
        assert_eq!(code, Some(0), "{host}$ {script}\n{text}");
        assert!(text.contains(says), "{host}$ {script}\ndoes not say {says:?}:\n{text}");
        text
    }

    /// Runs something that is no example until it says this.
    #[track_caller]
    fn until(&self, host: &str, script: &str, says: &str) {
        let end = Instant::now() + Duration::from_secs(30);
        while !self.also(host, script, "").contains(says) {
            assert!(Instant::now() < end, "{host}$ {script}\nnever says {says:?}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Starts an example that goes on until it is stopped, and returns the line that has this in it.
    #[track_caller]
    fn start(&mut self, host: &str, example: &str, says: &str) -> String {
        self.start_as(host, example, &self.script(example), says)
    }

    /// The same for one that ends with its input: somebody sits there and types nothing.
    #[track_caller]
    fn start_chat(&mut self, host: &str, example: &str, says: &str) -> String {
        self.start_as(host, example, &format!("sleep 30 | {}", self.script(example)), says)
    }

    #[track_caller]
    fn start_as(&mut self, host: &str, example: &str, script: &str, says: &str) -> String {
        self.seen.insert(example.to_owned());
        let running = self.stage.start(host, script);
        let mut said = Vec::new();
        let end = Instant::now() + LIMIT;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let Ok(line) = running.lines.recv_timeout(left) else {
                panic!("{host}$ {script}\ndoes not say {says:?}:\n{}", said.join("\n"))
            };
            if line.contains(says) {
                self.running.push((example.to_owned(), running));
                return line;
            }
            said.push(line);
        }
    }

    /// Waits for the end of one that was started.
    #[track_caller]
    fn finish(&mut self, example: &str) {
        let at = self.running.iter().position(|(running, _)| running == example).unwrap();
        let (code, lines) = self.running.remove(at).1.finish();
        assert_eq!(code, Some(0), "{example}\n{}", lines.join("\n"));
    }

    /// Stops what is running on all machines but for these.
    fn stop_all_but(&mut self, stay: &[&str]) {
        self.running.retain(|(example, _)| stay.contains(&example.as_str()));
    }

    /// Ends all chats.
    fn stop_chats(&mut self) {
        self.running.retain(|(example, _)| !example.contains("whimbrel chat"));
    }

    /// What is not run here, and where it is.
    fn elsewhere(&mut self, example: &str, _where: &str) {
        self.seen.insert(example.to_owned());
    }
}

/// The last word that begins so.
fn word(text: &str, beginning: &str) -> String {
    let found = text.split_whitespace().rfind(|word| word.starts_with(beginning));
    found.unwrap_or_else(|| panic!("no {beginning:?} in {text}")).to_owned()
}

#[test]
fn every_example_of_help_and_readme_works() {
    if !whimbrel_lab::require!() || !stage::possible() {
        return;
    }
    let start = Instant::now();
    let mut play =
        Play { stage: Stage::new(), words: Vec::new(), seen: BTreeSet::new(), running: Vec::new() };
    // The test's sshd lets in root.
    play.word(" ada@ssh.", " root@ssh.");
    play.word(" ada@home", " root@home");
    let serve = "whimbrel names serve --allow @example.org";
    // It takes longest, and needs none of the others.
    let demo = "whimbrel demo --size 64 --json";
    let mut showing = play.stage.start("vps", demo);
    start_everything(&mut play, serve);
    ssh(&mut play);
    names_and_trust(&mut play);
    tunnels(&mut play, serve);
    play.stop_all_but(&[serve]);
    files(&mut play);
    chats(&mut play);
    introductions(&mut play);
    play.stop_all_but(&[]);
    services(&mut play);
    play.stop_all_but(&[]);
    networks(&mut play);
    rest(&mut play);
    let (code, lines) = showing.finish();
    assert!(code == Some(0) && lines.join("\n").contains("\"ok\":true"), "{demo}\n{}", lines.join("\n"));
    play.seen.insert(demo.to_owned());
    let texts: BTreeSet<String> = of_help().union(&of_readme()).cloned().collect();
    assert!(texts.len() > 50, "{texts:?}");
    let missing: Vec<_> = texts.difference(&play.seen).collect();
    assert!(missing.is_empty(), "examples that no test runs; add them to this one: {missing:#?}");
    let stale: Vec<_> = play.seen.difference(&texts).collect();
    assert!(stale.is_empty(), "no text has these examples any more: {stale:#?}");
    println!("{} examples in {:?}", texts.len(), start.elapsed());
}

/// The service, keys and configurations.
fn start_everything(play: &mut Play, serve: &str) {
    // The operator of the service is the user who has a key when it starts.
    play.run("vps", "whimbrel id", "");
    let service = word(&play.start("vps", serve, "whimbrel:"), "whimbrel:");
    for host in ["vps", "home", "laptop"] {
        let directory = play.stage.home(host).join(".config/whimbrel");
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("config.toml"), format!("names = \"{service}\"\n")).unwrap();
    }
    play.word("whimbrel:<key>/192.0.2.1:4480", service.clone());
    play.word("--names whimbrel:…", format!("--names {service}"));
    play.word("$NAMES", service);
    let laptop = play.run("laptop", "whimbrel id", "");
    play.word("LAPTOP-ID", laptop.lines().last().unwrap());
    play.word("ID", laptop.lines().last().unwrap());
    play.run("home", "whimbrel id register ada@example.org", "ada@example.org");
}

fn ssh(play: &mut Play) {
    let ready = "can be reached as";
    play.running.retain(|(running, _)| !running.starts_with("whimbrel expose"));
    play.start("home", "whimbrel expose ssh.home.ada@example.org --to 127.0.0.1:22 --allow ID", ready);
    play.run("home", "export NAMES='whimbrel:<key>/192.0.2.1:4480'", "");
    play.run("laptop", "whimbrel ssh ada@ssh.home.ada@example.org", "");
    play.run("laptop", "whimbrel ssh --names \"$NAMES\" ada@ssh.home.ada@example.org", "");
    let forwarding = "whimbrel ssh -p 22 -L 8080:localhost:80 ada@ssh.home.ada@example.org uptime";
    play.run("laptop", forwarding, "load average");
    let kept = "whimbrel ssh --session work ada@ssh.home.ada@example.org";
    play.elsewhere(kept, "it needs a terminal; tests/ssh.rs");
    play.run("laptop", "ssh -o ProxyCommand='whimbrel pipe ssh.home.ada@example.org' ada@home", "");
    let named = "ssh -o ProxyCommand=\"whimbrel pipe ssh.home.ada@example.org --names '$NAMES'\" ada@home";
    play.run("laptop", named, "");
    play.run("laptop", "whimbrel setup ssh --print", "ProxyCommand");
    play.run("laptop", "whimbrel setup ssh", "has now what ssh needs");
    play.run("laptop", "ssh ada@ssh.home.ada+example.org", "");
    play.run("laptop", "whimbrel doctor", "name service over tcp");
    play.run("laptop", "whimbrel doctor ssh.home.ada@example.org --json", "\"well\":true");
}

fn names_and_trust(play: &mut Play) {
    play.run("laptop", "whimbrel names lookup ssh.home.ada@example.org --names whimbrel:…", "ssh.home.ada");
    play.run("laptop", "whimbrel names lookup ssh.home.ada@example.org --json", "\"name\"");
    play.run("laptop", "whimbrel names lookup ada@example.org --devices", "ssh.home.ada@example.org");
    play.start("laptop", "whimbrel names watch ssh.home.ada@example.org --json", "ssh.home.ada");
    play.run("home", "whimbrel names group add team.ada@example.org bob@example.org", "bob@example.org");
    play.run("home", "whimbrel names group show team.ada@example.org", "bob@example.org");
    play.run("home", "whimbrel names group renew team.ada@example.org", "bob@example.org");
    play.run("home", "whimbrel names group remove team.ada@example.org bob@example.org", "");
    play.run("laptop", "whimbrel trust show", "ada@example.org");
    play.run("laptop", "whimbrel trust show ada@example.org --json", "ada@example.org");
    play.run("laptop", "whimbrel trust forget ada@example.org", "forgotten");
    let laptop = play.script("ID");
    let home = play.also("home", "whimbrel id", "");
    play.word("ID", home.lines().last().unwrap());
    play.run("laptop", "whimbrel trust accept ada@example.org=ID", "is pinned to");
    play.word("ID", laptop);
}

fn tunnels(play: &mut Play, serve: &str) {
    play.stop_all_but(&[serve]);
    let ready = "can be reached as";
    play.also("home", "mkdir site && echo hello > site/index.html", "");
    // No example: what the examples bring to other places.
    let site = play.stage.start("home", "python3 -m http.server 8080 --bind 127.0.0.1 --directory site");
    site.lines.recv_timeout(LIMIT).unwrap();
    let ticket =
        play.start("home", "whimbrel expose --ticket --to 127.0.0.1:8080 --secret --port 4433", "whimbrel:");
    play.also("laptop", &format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | whimbrel pipe {ticket}"), "hello");
    play.start(
        "home",
        "whimbrel expose files.home.ada@example.org --to 127.0.0.1:8080 --allow LAPTOP-ID",
        ready,
    );
    for name in ["web", "db"] {
        let others =
            format!("whimbrel expose {name}.home.ada@example.org --to 127.0.0.1:8080 --allow LAPTOP-ID");
        let script = play.script(&others);
        let running = play.stage.start("home", &script);
        assert!(running.lines.recv_timeout(LIMIT).unwrap().contains(ready));
        play.running.push((others, running));
    }
    play.start(
        "laptop",
        "whimbrel forward web.home.ada@example.org --listen 127.0.0.1:8080",
        "127.0.0.1:8080 leads to",
    );
    play.run("laptop", "curl http://127.0.0.1:8080/", "hello");
    play.run("laptop", "whimbrel status", "forward web.home.ada");
    let report = play.run("laptop", "whimbrel status --json", "forward");
    let report: serde_json::Value = serde_json::from_str(report.lines().last().unwrap()).unwrap();
    let connections = report[0]["connections"].as_array().unwrap();
    let path = connections.iter().find(|one| one["name"] == "web.home.ada@example.org").unwrap();
    play.word("4711", report[0]["pid"].to_string());
    play.word("1=backup", format!("{}=backup", path["paths"][0]["id"]));
    play.start("laptop", "whimbrel status --watch", "forward web.home.ada");
    play.start("laptop", "whimbrel status --events --json --interval 5s", "\"running\"");
    play.run("laptop", "whimbrel limit", "has no limits");
    play.run("laptop", "whimbrel limit forward --rate 2Mbit", "limited to 2 Mbit/s");
    play.run("laptop", "whimbrel limit 4711 --urgency 7 --rate 500kbit", "500 kbit/s of urgency 7");
    play.run("laptop", "whimbrel limit forward --rate off", "of urgency 7");
    play.run("laptop", "whimbrel paths", "wlan0");
    play.run("laptop", "whimbrel paths --mode backup", "mode backup");
    play.run("laptop", "whimbrel paths 4711 --path 1=backup --scheduler min-rtt", "");
    // Without a manager it chooses itself, and says so.
    play.start("laptop", "whimbrel forward web.home.ada@example.org --intent cost=no-expense", "leads to");
    let socket = play.stage.home("laptop").join("run");
    play.word("/run/user/1000", socket.to_str().unwrap());
    let unix = "whimbrel forward db.home.ada@example.org --listen unix:/run/user/1000/db";
    play.start("laptop", unix, "leads to");
    play.also("laptop", &format!("curl -sS --unix-socket {}/db http://db/", socket.display()), "hello");
    play.start("laptop", "whimbrel forward files.home.ada@example.org --mode full", "leads to");
    gateways(play);
}

fn gateways(play: &mut Play) {
    // No example: an ordinary server in the internet.
    let script = "mkdir -p plain && echo ordinary > plain/index.html \
                  && exec python3 -m http.server 8000 --bind 203.0.113.5 --directory plain";
    let server = play.stage.start("vps", script);
    server.lines.recv_timeout(LIMIT).unwrap();
    play.start(
        "home",
        "whimbrel gateway serve gate.home.ada@example.org --allow ID",
        "gateway for gate.home",
    );
    let through = "whimbrel proxy socks --through gate.home.ada@example.org";
    play.start("laptop", through, "SOCKS proxy on 127.0.0.1:1080");
    play.word("http://example.org/", "http://203.0.113.5:8000/");
    play.run("laptop", "curl --proxy socks5h://127.0.0.1:1080 http://example.org/", "ordinary");
    sessions(play);
    let named = "whimbrel proxy socks --listen 127.0.0.1:1081 --host web.home.ada@example.org:80";
    play.start("laptop", named, "SOCKS proxy on 127.0.0.1:1081");
    let by_name = "curl --proxy socks5h://127.0.0.1:1081 http://web.home.ada.at.example.org.whimbrel/";
    play.run("laptop", by_name, "hello");
    let named = "whimbrel proxy http --listen 127.0.0.1:8120 --host web.home.ada@example.org";
    play.start("laptop", named, "HTTP proxy on 127.0.0.1:8120");
    let by_name = "curl --proxy http://127.0.0.1:8120 http://web.home.ada.at.example.org.whimbrel/";
    play.run("laptop", by_name, "hello");
    let through = "whimbrel run --through gate.home.ada@example.org -- curl http://example.org/";
    play.run("laptop", through, "ordinary");
    let by_ticket = "whimbrel gateway serve --ticket --secret --port 443 --to 192.168.1.0/24:80";
    play.start("home", by_ticket, "whimbrel:");
    publishing(play);
    play.run("laptop", "whimbrel proxy pac", "PROXY 127.0.0.1:8118");
    play.run("laptop", "whimbrel proxy pac --only-names", "DIRECT");
}

/// What listens on the laptop is reached by the address of a gateway at home.
fn publishing(play: &mut Play) {
    let serve = "whimbrel gateway serve --ticket --allow ID --publish 8443=ID";
    let gate = "gate.home.ada@example.org";
    let ticket = play.start("home", serve, "whimbrel:");
    play.word(gate, word(&ticket, "whimbrel:"));
    let expose = format!("whimbrel expose --public 8443 --gateway {gate} --to 127.0.0.1:8080");
    play.start("laptop", &expose, "is public as");
    play.word(gate, gate);
    play.also("vps", "curl -sS http://198.51.100.7:8443/", "hello");
    play.run("laptop", "whimbrel help publishing", "--public-tls");
    play.run("laptop", "whimbrel help service-limits", "mails-per-hour");
    play.run("laptop", "whimbrel help networks", "--max-paths");
    play.run("laptop", "whimbrel help apps", "adapter = ");
}

/// A download that takes long goes on in another program.
fn sessions(play: &mut Play) {
    play.also("vps", "head -c 4000000 /dev/zero > plain/film", "");
    let slowly =
        "curl -sS --limit-rate 50k --socks5-hostname 127.0.0.1:1080 -o film http://203.0.113.5:8000/film";
    let _curl = play.stage.start("laptop", slowly);
    let listed = "whimbrel sessions --through gate.home.ada@example.org --json";
    let begun = Instant::now();
    let id = loop {
        let said = play.run("laptop", listed, "sessions");
        if let Some((_, rest)) = said.split_once("\"id\":\"") {
            break rest[..8].to_owned();
        }
        assert!(begun.elapsed() < LIMIT, "there is no session: {said}");
    };
    play.word("SESSION", id);
    play.run("laptop", "whimbrel sessions --through gate.home.ada@example.org", "203.0.113.5:8000");
    // The desk comes later in this play.
    let desk = play.script("--to ID");
    play.word("--to desk", desk);
    let handoff = "whimbrel handoff SESSION --to desk --through gate.home.ada@example.org";
    play.run("laptop", handoff, "may take it for 5m");
    play.start(
        "laptop",
        "whimbrel take SESSION --through gate.home.ada@example.org",
        "waits for a program on",
    );
    let asked = "whimbrel take SESSION --through gate.home.ada@example.org --as http -- curl -o rest {url}";
    play.run("laptop", asked, "");
    play.also("laptop", "test $(stat -c %s rest) -gt 1000000 && echo moved", "moved");
    let anew =
        "whimbrel take SESSION --through gate.home.ada@example.org --as line -- irssi -c {host} -p {port}";
    play.elsewhere(anew, "tests/session_lines.rs");
    let film = "whimbrel take SESSION --through gate.home.ada@example.org --as http-time -- mpv {url}";
    play.elsewhere(film, "tests/moving_film.rs");
    let https = "whimbrel take SESSION --from TICKET --as http -- curl -o rest {url}";
    play.elsewhere(https, "tests/moving_web.rs");
    agents(play);
}

/// What is handed over to the laptop from now on has a program there.
fn agents(play: &mut Play) {
    let lines = [
        "[[app]]",
        "match = \"http\"",
        "adapter = \"http\"",
        "run = [\"curl\", \"-o\", \"rest\", \"{url}\"]",
    ];
    let lines = lines.map(|line| format!("'{line}'")).join(" ");
    let list = format!("printf '%s\\n' {lines} | tee apps.toml > .config/whimbrel/apps.toml");
    play.also("laptop", &list, "");
    let agent = "whimbrel agent --through gate.home.ada@example.org";
    play.start("laptop", agent, "waiting for sessions of gate.home.ada@example.org");
    let agent = "whimbrel agent --through gate.home.ada@example.org --apps ~/apps.toml --from ID --json";
    play.start("laptop", agent, "\"event\":\"ready\"");
}

fn files(play: &mut Play) {
    for host in ["home", "laptop"] {
        play.also(host, "mkdir -p photos incoming; echo one > photos/one; echo holiday > holiday.tar", "");
    }
    let send = "whimbrel send holiday.tar";
    let code = play.start("home", send, "-");
    play.word("harvest-otter-violin", word(&code, ""));
    play.also("laptop", "rm holiday.tar", "");
    play.run("laptop", "whimbrel receive harvest-otter-violin", "holiday.tar has arrived");
    play.finish(send);
    // Ada was pinned above.
    let inbox = "whimbrel receive --as inbox.laptop.bob@example.org --allow ada@example.org --dir ~/incoming";
    play.start("laptop", inbox, "waiting for files");
    let photos = "whimbrel send holiday.tar photos --to inbox.laptop.bob@example.org";
    play.run("home", photos, "arrived");
    play.run("home", "tar c . | whimbrel send - --as all.tar --to inbox.laptop.bob@example.org", "arrived");
    play.also("laptop", "cat incoming/photos/one && tar tf incoming/all.tar", "photos/one");
    let once = "whimbrel receive --allow any --once --yes";
    let ticket = play.start("laptop", once, "whimbrel:");
    play.also("home", &format!("whimbrel send photos/one --to {ticket}"), "has arrived");
    play.finish(once);
}

fn chats(play: &mut Play) {
    let made = "whimbrel chat --code";
    let code = play.start_chat("home", made, "-");
    play.word("harvest-otter-violin", word(&code, ""));
    let joining = play.script("whimbrel chat harvest-otter-violin < /dev/null");
    play.also("laptop", &joining, "");
    play.finish(made);
    // Ada was pinned above.
    let waits = "whimbrel chat --as chat.laptop.bob@example.org --allow ada@example.org";
    play.start_chat("laptop", waits, "waiting for somebody");
    play.run("home", "echo hello | whimbrel chat chat.laptop.bob@example.org --json", "\"delivered\"");
    play.start_chat("home", "whimbrel chat chat.laptop.bob@example.org", "is here");
    play.stop_chats();
}

fn introductions(play: &mut Play) {
    // The laptop is a user's with a group of its own from then on, and no device of another's.
    for (invite, who, join, says) in [
        (
            "whimbrel invite --as ada@example.org",
            "laptop",
            "whimbrel join harvest-otter-violin --as bob@example.org",
            "ada@example.org is",
        ),
        ("whimbrel invite --device laptop.ada@example.org", "vps", "whimbrel join harvest-otter-violin", ""),
    ] {
        let code = play.start("home", invite, "-");
        play.word("harvest-otter-violin", word(&code, ""));
        play.run(who, join, says);
        play.finish(invite);
    }
    devices_and_friends(play);
    let delegate = "whimbrel id delegate laptop.ada@example.org --to ID";
    let given = play.run("home", delegate, "whimbrel-delegation:");
    play.word("whimbrel-delegation:…", word(&given, "whimbrel-delegation:"));
    play.run("laptop", "whimbrel id accept whimbrel-delegation:…", "");
    play.run("home", "whimbrel id appoint laptop.ada@example.org --to ID", "whimbrel-appointment:");
    play.run("home", "whimbrel id devices", "laptop.ada@example.org");
    play.run("home", "whimbrel id renew", "nothing is due");
    play.run("home", "whimbrel id revoke laptop.ada@example.org", "laptop.ada@example.org");
    let code = play.run("vps", "whimbrel names invite --domain example.org", "");
    play.word("CODE", code.lines().last().unwrap());
    play.run("home", "whimbrel id register ada@example.org --invite CODE", "ada@example.org");
}

fn devices_and_friends(play: &mut Play) {
    play.run("home", "whimbrel devices list", "laptop.ada@example.org");
    for screen in ["whimbrel devices screen", "whimbrel devices screen --through gate.home.ada@example.org"] {
        play.elsewhere(screen, "it needs a terminal; tests/devices_screen.rs");
    }
    play.run("home", "whimbrel devices name laptop.ada@example.org desk", "desk");
    play.run("home", "whimbrel devices list --json", "\"called\":\"desk\"");
    play.run("home", "whimbrel devices trust desk", "desk may act for you");
    let ticket = play.start("home", "whimbrel devices serve", "whimbrel:");
    play.word("TICKET", ticket);
    play.run("vps", "whimbrel devices sync TICKET", "both devices are up to date");
    play.also("vps", "whimbrel devices list", "desk  laptop.ada@example.org, may act for you, this one");
    moves(play);
    play.run("home", "whimbrel friends list", "bob@example.org");
    play.run("home", "whimbrel friends name bob@example.org bobby", "bobby");
    play.run("home", "whimbrel friends list --json", "\"called\":\"bobby\"");
    play.run("home", "whimbrel friends device bobby ID", "is noted as a device of bobby");
    play.run("home", "whimbrel friends allow bobby", "bobby may see which");
    play.run("home", "whimbrel friends allow bobby --devices", "bobby may see which devices you have");
    play.run("home", "whimbrel friends remove bobby", "no friend any more");
    requests(play);
    play.run("home", "whimbrel devices show desk --to friends", "is shown to friends");
    play.run("home", "whimbrel devices away", "shown as away");
    play.run("home", "whimbrel devices away --off", "shown as present");
    play.start("home", "whimbrel devices list --watch", "desk  laptop.ada@example.org");
    let agent = play.stage.start("home", "whimbrel agent");
    play.word("TICKET", agent.until(|line| line.starts_with("whimbrel:")));
    play.start("vps", "whimbrel agent --peer TICKET", "whimbrel:");
    play.run("home", "whimbrel devices remove desk", "desk is removed");
}

/// Users and machines that ask by the name service.
fn requests(play: &mut Play) {
    play.run("home", "whimbrel friends request bob@example.org", "bob@example.org is asked");
    play.also("laptop", "whimbrel friends requests", "from ada@example.org");
    play.run("laptop", "whimbrel friends accept ada@example.org", "ada@example.org is a friend now");
    // Its agent, which runs since `moves`, has heard of the answer.
    play.until("home", "whimbrel friends list", "bob@example.org");
    play.run("home", "whimbrel friends requests", "no requests");
    let eve = "whimbrel friends request ada@example.org --as eve@example.org --identity eve.key";
    play.also("vps", eve, "ada@example.org is asked");
    play.run("home", "whimbrel friends refuse eve@example.org", "eve@example.org is refused");
    let ask = "whimbrel devices request tablet.ada@example.org";
    let words = play.start("laptop", ask, "-");
    play.word("WORDS", words);
    play.run("home", "whimbrel devices accept WORDS", "may use tablet.ada@example.org now");
    play.finish(ask);
    let other = play.stage.start("laptop", "whimbrel devices request other.ada@example.org");
    play.word("OTHER-WORDS", other.until(|line| line.contains('-')));
    play.run("home", "whimbrel devices refuse OTHER-WORDS", "is refused");
}

/// Chats of home with the laptop go on at the desk, which is the other server here.
fn moves(play: &mut Play) {
    let session = |listed: &str| {
        let line = listed.lines().find(|line| line.contains("  chat  "));
        line.and_then(|line| line.get(..8)).unwrap_or_else(|| panic!("no session: {listed}")).to_owned()
    };
    let talk = |play: &Play| {
        let waiting = play.stage.start("laptop", "sleep 60 | whimbrel chat --allow any");
        let ticket = waiting.until(|line| line.starts_with("whimbrel:"));
        let talking = play.stage.start("home", &format!("sleep 60 | whimbrel chat {ticket}"));
        talking.until(|line| line.ends_with("is here"));
        (waiting, talking)
    };
    let (_waiting, moved) = talk(&*play);
    let listed = play.run("home", "whimbrel sessions", "  chat  ");
    play.word("SESSION", session(&listed));
    // It was somebody else's before.
    play.word("--to desk", "--to desk");
    let said = play.run("home", "whimbrel handoff SESSION --to desk", "may take it for 5m");
    play.elsewhere("whimbrel handoff SESSION --to desk --relay RELAY", "tests/lab_moving.rs");
    play.word("TICKET", word(&said, "whimbrel:"));
    play.start_chat("vps", "whimbrel take SESSION --from TICKET", "is here");
    // Then it is not listed any more.
    moved.until(|line| line.contains("went on at"));
    let _by_name = talk(&*play);
    play.start("home", "whimbrel agent --as phone.ada@example.org", "take what runs here");
    let listed = play.run("vps", "whimbrel sessions --from phone.ada@example.org", "  chat  ");
    play.word("SESSION", session(&listed));
    play.start_chat("vps", "whimbrel take SESSION --from phone.ada@example.org", "is here");
}

fn services(play: &mut Play) {
    for serve in [
        "whimbrel names serve --listen 0.0.0.0:4480 --allow @example.org",
        "whimbrel names serve --listen 0.0.0.0:4480 --store ~/names.redb --allow @example.org",
    ] {
        play.stop_all_but(&[]);
        play.start("vps", serve, "whimbrel:");
    }
    play.also("home", "whimbrel id register ada@example.org", "ada@example.org");
    let names = play.script("$NAMES");
    let expose =
        "whimbrel expose ssh.home.ada@example.org --to 127.0.0.1:22 --allow LAPTOP-ID --names \"$NAMES\"";
    play.start("home", expose, "can be reached as");
    // README's program, with the key that is let in.
    let program = readme_program();
    let key = play.stage.home("laptop").join(".config/whimbrel/identity");
    let script = format!("{} ssh.home.ada@example.org {names} {}", program.display(), key.display());
    play.also("laptop", &script, "SSH-2.0");
}

/// The example that has README's lines in it.
fn readme_program() -> std::path::PathBuf {
    let example = include_str!("../examples/readme.rs");
    let block = README.split("```rust\n").nth(1).unwrap().split("```").next().unwrap();
    let wanted: Vec<&str> = block.lines().map(|line| line.split("  //").next().unwrap().trim()).collect();
    let lines: Vec<&str> = example.lines().map(str::trim).collect();
    let found = lines.windows(wanted.len()).any(|window| window == wanted);
    assert!(found && wanted.len() > 3, "examples/readme.rs does not have the lines of README: {wanted:#?}");
    whimbrel_lab::example(env!("CARGO_PKG_NAME"), "readme")
}

fn networks(play: &mut Play) {
    for (serve, says) in [
        ("whimbrel access serve", "choosing among"),
        ("whimbrel access serve --policy eaf --interval 50 --external 20", "choosing among"),
        ("whimbrel access serve --metered usb0", "choosing among"),
    ] {
        play.stop_all_but(&[]);
        // The manager goes when it is told to; until then the next one says that there is one.
        play.also(
            "laptop",
            "for n in $(seq 100); do test -e run/whimbrel/access || break; sleep 0.1; done",
            "",
        );
        play.start("laptop", serve, says);
    }
    // Beside those of the system that runs the tests.
    for (example, socket, says) in [
        ("whimbrel access serve --host --metered usb0", "run/host/access", "choosing among"),
        ("whimbrel access steer", "run/steer/0", "steering Multipath TCP for user 0"),
        ("whimbrel access steer --user 1000", "run/steer/1000", "steering Multipath TCP for user 1000"),
    ] {
        if example.contains("steer") && !std::path::Path::new("/proc/sys/net/mptcp/pm_type").exists() {
            whimbrel_lab::skip(example, "the kernel lets no program manage paths");
            play.seen.insert(example.to_owned());
            continue;
        }
        play.start_as("laptop", example, &format!("{example} --socket {socket}"), says);
    }
    play.word("example.org:443", "203.0.113.5:443");
    play.start("laptop", "whimbrel access watch", "wlan0");
    play.start("laptop", "whimbrel access watch --json", "\"paths\"");
    let ask = "whimbrel access ask --intent size-received=300KB --to example.org:443";
    play.run("laptop", ask, "wlan0 from 192.168.1.10 to 203.0.113.5:443 by tcp");
    play.run("laptop", "whimbrel access ask --to ssh.laptop.user@example.org", "by whimbrel to ");
    let free = "whimbrel access ask --intent category=query --intent cost=no-expense --json";
    let told = play.run("laptop", free, "\"ways\"");
    assert!(told.contains("wlan0") && !told.contains("usb0"), "{told}");
    proxies(play);
}

fn proxies(play: &mut Play) {
    play.also("vps", "mkdir -p site && echo hello > site/index.html", "");
    // No example: what the examples load.
    let site = play.stage.start("vps", "python3 -m http.server 8088 --bind 203.0.113.5 --directory site");
    site.lines.recv_timeout(LIMIT).unwrap();
    play.word("http://example.org/", "http://203.0.113.5:8088/");
    play.start("laptop", "whimbrel proxy http", "HTTP proxy on 127.0.0.1:8118");
    play.run("laptop", "curl --proxy http://127.0.0.1:8118 http://example.org/", "hello");
    play.run("laptop", "whimbrel proxy intercept-ca --out ca --for example.org", "for example.org, until 2");
    let intercepting =
        "whimbrel proxy http --listen 127.0.0.1:8119 --intercept example.org --intercept-ca ca";
    play.start("laptop", intercepting, "HTTP proxy on 127.0.0.1:8119");
    play.run("laptop", "whimbrel run -- curl http://example.org/", "hello");
    // The laptop of the test has no browser; this one loads a page too.
    play.stage.program("firefox", "exec curl -sS http://203.0.113.5:8088/");
    play.run("laptop", "whimbrel run --first-step 16KiB -- firefox --no-remote", "hello");
    play.run("laptop", "whimbrel run -- firefox", "hello");
}

fn rest(play: &mut Play) {
    play.elsewhere("whimbrel demo", "the same with a size that takes a minute; tests/demo.rs");
    play.run("laptop", "whimbrel help options", "--identity");
    play.run("laptop", "whimbrel help config", "[names-serve]");
    play.run("laptop", "whimbrel help names serve", "--allow");
    play.run("laptop", "whimbrel help completions bash", "_whimbrel");
    play.also("laptop", "mkdir man", "");
    play.word("man DIR", "man man");
    play.run("laptop", "whimbrel help man DIR", "");
    for example in [
        "whimbrel expose ssh.home.ada@example.org --to 127.0.0.1:22 --allow ID --take-over",
        "whimbrel forward web.home.ada@example.org --take-over",
        "whimbrel names serve --allow @example.org --take-over",
    ] {
        play.elsewhere(example, "tests/takeover.rs");
    }
    for example in [
        "export NAMES='whimbrel:<key>/203.0.113.5:443'",
        "whimbrel expose ssh.home.ada@example.org --to 127.0.0.1:22 --allow LAPTOP-ID --names \"$NAMES\" --relay \"$NAMES\"",
        "whimbrel serve --listen 0.0.0.0:443 --allow @example.org",
    ] {
        play.elsewhere(example, "tests/lab_reach_ssh.rs");
    }
    play.elsewhere("whimbrel doctor --relay pool.ada@example.org", "tests/doctor.rs");
    for example in [
        "whimbrel relay list pool.ada@example.org",
        "whimbrel relay serve --allow any --group pool.ada@example.org --as fra.ada@example.org --place fra",
    ] {
        play.elsewhere(example, "tests/lab_reach.rs");
    }
    play.stop_all_but(&[]);
    play.start("vps", "whimbrel relay serve --allow ID", "whimbrel:");
    play.elsewhere("whimbrel relay serve --allow ID --take-over", "tests/lab_relay_take_over.rs");
    play.elsewhere("whimbrel relay serve --names SERVICE --allow @example.org", "tests/relay_domains.rs");
    let with_metrics = "whimbrel relay serve --listen 0.0.0.0:8443 --allow any --metrics 127.0.0.1:9090";
    play.start("vps", with_metrics, "relaying on port 8443");
    play.also("vps", "curl -sS http://127.0.0.1:9090/metrics", "whimbrel_relay_reservations 0");
    play.elsewhere("./demo", "scripts/test-bare-root.sh, and the continuous integration");
    play.elsewhere("./test", "it runs this test");
    play.elsewhere("cargo install --path crates/pageload", "the workspace's build");
    let waterfall = "whimbrel-pageload waterfall page.har --path 20ms,6mbit --path 50ms,20mbit -o page.svg";
    play.elsewhere(waterfall, "crates/pageload/tests/program.rs");
}
