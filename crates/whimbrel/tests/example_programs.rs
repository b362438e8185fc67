//! Examples run as they are.
#![allow(clippy::unwrap_used)]

use std::any::Any;
use std::fs;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use whimbrel::blocking::{IDENTITY_VARIABLE, NAMES_VARIABLE};
use whimbrel::names::{Admission, Limits, MemoryStore, Service};
use whimbrel::{Ticket, transport};
use whimbrel_lab::{Host, Lab, LinkSpec, Rate, require};

const LIMIT: Duration = Duration::from_secs(30);

/// A process of this host; killed when dropped.
struct Here(Child);

impl Drop for Here {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A running example; killed when dropped.
struct Running {
    lines: Receiver<String>,
    child: Box<dyn Any>,
}

impl Running {
    fn start(program: &PathBuf, args: &[&str]) -> Self {
        Self::of(Command::new(program).args(args))
    }

    fn of(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = child.stdout.take().unwrap();
        Self::saying(output, Box::new(Here(child)))
    }

    /// With somebody who types.
    fn typed(program: &Path, args: &[&str]) -> (Self, ChildStdin) {
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (keys, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        (Self::saying(output, Box::new(Here(child))), keys)
    }

    /// One that fails, and says why.
    #[track_caller]
    fn fails(command: &mut Command) -> String {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let errors = child.stderr.take().unwrap();
        let (end, why) = Self::saying(errors, Box::new(Here(child))).end();
        assert!(!end.success(), "{why}");
        why
    }

    /// On a host of the lab.
    fn inside(host: &Host, program: &Path, args: &[&str]) -> Self {
        let command = host.command(program.to_str().unwrap()).args(args).with(|command| {
            command.stdout(Stdio::piped());
        });
        let mut child = command.spawn().unwrap();
        let output = child.child().stdout.take().unwrap();
        Self::saying(output, Box::new(child))
    }

    fn saying(output: impl Read + Send + 'static, child: Box<dyn Any>) -> Self {
        let output = BufReader::new(output);
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line).ok())
        });
        Self { lines, child }
    }

    #[track_caller]
    fn line(&self) -> String {
        self.lines.recv_timeout(LIMIT).unwrap()
    }

    /// How it ends, and what it says until then. Of a process of this host.
    #[track_caller]
    fn end(mut self) -> (ExitStatus, String) {
        let mut said = Vec::new();
        loop {
            match self.lines.recv_timeout(LIMIT) {
                Ok(line) => said.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("it goes on: {said:?}"),
            }
        }
        let Here(child) = self.child.downcast_mut::<Here>().unwrap();
        (child.wait().unwrap(), said.join("\n"))
    }

    #[track_caller]
    fn ends_well(self) {
        let (end, said) = self.end();
        assert!(end.success(), "{end}: {said}");
    }

    /// The numbers in its next lines, until they are as wanted.
    #[track_caller]
    fn until(&self, wanted: impl Fn(&[f64]) -> bool) -> Vec<f64> {
        let start = Instant::now();
        loop {
            let line = self.line();
            let words = line.split(|c: char| !c.is_ascii_digit() && !"-.".contains(c));
            let numbers: Vec<f64> = words.filter_map(|word| word.parse().ok()).collect();
            if wanted(&numbers) {
                return numbers;
            }
            assert!(start.elapsed() < LIMIT, "{line}");
        }
    }
}

/// An example that fits on a page.
fn example(name: &str) -> PathBuf {
    let source = format!("{}/examples/{name}.rs", env!("CARGO_MANIFEST_DIR"));
    let lines = std::fs::read_to_string(source).unwrap().lines().count();
    assert!(lines < 80, "{name} has {lines} lines");
    whimbrel_lab::example(env!("CARGO_PKG_NAME"), name)
}

#[test]
fn every_example_is_run_by_a_test_of_this_file() {
    let tests = include_str!("example_programs.rs");
    for entry in fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/examples")).unwrap() {
        let file = entry.unwrap().path();
        let name = file.file_stem().unwrap().to_str().unwrap();
        assert!(tests.contains(&format!("example(\"{name}\")")), "no test runs the example {name}");
    }
}

#[test]
fn telemetry_shows_readings_that_change_and_after_a_pause_the_newest() {
    let program = example("telemetry");
    let watching = Running::start(&program, &[]);
    let ticket = watching.line();
    let measuring = Running::start(&program, &[&ticket]);
    let first = watching.until(|values| values.len() == 8 && values.iter().all(|value| *value != 0.0));
    let second = watching.until(|values| values.len() == 8);
    assert!(first.iter().zip(&second).all(|(first, second)| first != second), "{first:?} {second:?}");
    let delivered = measuring.until(|counts| counts[0] > 50.0)[0];
    measuring.until(|counts| counts[0] > delivered + 100.0);
}

#[test]
fn a_name_service_a_server_and_a_client_in_one_program_are_thirty_lines() {
    let lines = include_str!("../examples/embedded.rs").lines().count();
    assert!(lines <= 30, "{lines}");
    assert_eq!(Running::start(&example("embedded"), &[]).line(), "the clock says: it is late");
}

#[test]
fn what_is_typed_comes_back_by_the_echo() {
    let program = example("echo");
    let serving = Running::start(&program, &[]);
    let (calling, mut keys) = Running::typed(&program, &[&serving.line()]);
    for line in ["hello", "and again"] {
        writeln!(keys, "{line}").unwrap();
        assert_eq!(calling.line(), line);
    }
    drop(keys);
    calling.ends_well();
}

#[test]
fn two_people_chat_until_one_leaves() {
    let program = example("chat");
    let (ada, mut adas) = Running::typed(&program, &[]);
    let (bob, mut bobs) = Running::typed(&program, &[&ada.line()]);
    for here in [&ada, &bob] {
        let line = here.line();
        assert!(line.starts_with("-- ") && line.ends_with(" is here; end with ctrl-d"), "{line}");
    }
    writeln!(bobs, "hello").unwrap();
    assert_eq!(ada.line(), "> hello");
    writeln!(adas, "good evening").unwrap();
    assert_eq!(bob.line(), "> good evening");
    drop(bobs);
    assert_eq!([ada.line(), bob.line()], ["-- has left", "-- has left"]);
}

#[test]
fn a_file_is_copied_and_no_copy_is_replaced() {
    let program = example("file_copy");
    let folder = tempfile::tempdir().unwrap();
    let [file, copy] = ["file", "copy"].map(|name| folder.path().join(name));
    let data: Vec<u8> = (0..3_000_000_u32).map(|n| (n * 7 % 251) as u8).collect();
    fs::write(&file, &data).unwrap();
    let receive = ["receive", copy.to_str().unwrap()];
    let receiving = Running::start(&program, &receive);
    let sending = Running::start(&program, &["send", file.to_str().unwrap(), &receiving.line()]);
    sending.ends_well();
    receiving.ends_well();
    assert!(fs::read(&copy).unwrap() == data, "the copy differs");
    let why = Running::fails(Command::new(&program).args(receive));
    assert!(why.contains("must not exist yet"), "{why}");
}

#[test]
fn the_same_program_over_tcp_and_over_whimbrel_says_the_same() {
    let running = Running::start(&example("side_by_side"), &[]);
    assert_eq!(running.line(), "std::net: HELLO FROM HERE");
    assert_eq!(running.line(), "whimbrel: HELLO FROM HERE");
    running.ends_well();
}

/// What the environment says makes the endpoint that a process has by default.
#[test]
fn a_name_is_served_by_a_key_that_lasts_also_after_a_restart_and_by_no_other() {
    const NAME: &str = "shout.desk.ada@example.org";
    let program = example("shout");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let service = runtime.block_on(async {
        let own = transport::Endpoint::builder().bind().await.unwrap();
        Service::start(own, MemoryStore::new(), Admission::any(), Limits::default()).await.unwrap()
    });
    let names = Ticket::from(service.addr()).to_string();
    let folder = tempfile::tempdir().unwrap();
    let shout = |args: &[&str], key: Option<&str>| {
        let mut command = Command::new(&program);
        command.args(args).env(NAMES_VARIABLE, &names).env_remove(IDENTITY_VARIABLE);
        command.envs(key.map(|key| (IDENTITY_VARIABLE, folder.path().join(key))));
        command
    };
    for _ in 0..2 {
        let serving = Running::of(&mut shout(&["serve", NAME], Some("key")));
        assert_eq!(serving.line(), format!("{NAME} is here"));
        let asking = Running::of(&mut shout(&[NAME], None));
        assert_eq!(asking.line(), "HELLO FROM HERE");
        asking.ends_well();
    }
    for (name, key, why) in [
        ("shout.desk.eve@example.org", None, "this endpoint's key ends with it"),
        (NAME, Some("another"), "belongs to another key"),
    ] {
        let said = Running::fails(&mut shout(&["serve", name], key));
        assert!(said.contains(why), "{said}");
    }
}

/// The first block of README is a program of its own, which the tests of the command line run.
#[test]
fn the_lines_of_readme_on_messages_and_on_sleep_work() {
    let blocks = include_str!("../../../README.md").split("```rust\n").skip(2);
    let blocks: Vec<&str> = blocks.map(|rest| rest.split("```").next().unwrap()).collect();
    let code = |line: &str| line.split(" //").next().unwrap().trim().to_owned();
    let wanted: Vec<String> = blocks.iter().flat_map(|block| block.lines()).map(code).collect();
    assert_eq!((blocks.len(), wanted.len()), (2, 7), "{wanted:#?}");
    let mut lines = include_str!("../examples/thermometer.rs").lines().map(str::trim);
    for line in &wanted {
        assert!(lines.any(|known| known == line), "examples/thermometer.rs does not go on with: {line}");
    }
    let running = Running::start(&example("thermometer"), &[]);
    assert_eq!(running.line(), "it is 21.5 °C");
    assert_eq!(running.line(), "the stream says: still here");
}

#[test]
fn the_counter_that_hops_misses_no_number() {
    let hopping = Running::start(&example("hop"), &[]);
    hopping.until(|numbers| numbers.first() == Some(&16.0));
}

#[test]
fn a_meter_and_its_collector_are_killed_and_the_readings_go_on_in_order() {
    let program = example("meter");
    let folder = tempfile::tempdir().unwrap();
    let [meter, collector] = ["meter", "collector"].map(|name| folder.path().join(name));
    let free = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let port = free.local_addr().unwrap().port().to_string();
    drop(free);
    let collect = || Running::start(&program, &["collect", collector.to_str().unwrap(), &port]);
    let collecting = collect();
    let ticket = collecting.line();
    let measure = || Running::start(&program, &["measure", meter.to_str().unwrap(), &ticket]);
    let measuring = measure();
    let next = |collecting: &Running| collecting.until(|numbers| numbers.len() == 2)[0];
    assert_eq!([next(&collecting), next(&collecting)], [1.0, 2.0]);
    drop(measuring);
    let measuring = measure();
    assert_eq!([3, 4, 5].map(|_| next(&collecting)), [3.0, 4.0, 5.0]);
    drop(collecting);
    // Some are on its disk meanwhile.
    measuring.until(|numbers| numbers.last().is_some_and(|waiting| *waiting >= 2.0));
    let collecting = collect();
    collecting.line();
    // What it had printed last it may not have acknowledged.
    let first = next(&collecting);
    assert!(first >= 5.0);
    assert_eq!([1, 2, 3].map(|_| next(&collecting)), [first + 1.0, first + 2.0, first + 3.0]);
}

#[test]
fn video_shows_every_frame_while_the_link_is_good() {
    let program = example("video");
    let showing = Running::start(&program, &[]);
    let ticket = showing.line();
    let _sending = Running::start(&program, &[&ticket]);
    let numbers = showing.until(|numbers| numbers[1] > 60.0);
    let [frame, shown, skipped] = numbers[..] else { panic!("{numbers:?}") };
    assert_eq!(shown + skipped, frame + 1.0, "every frame is shown or skipped");
    assert!(skipped <= 30.0, "{skipped} of {frame} skipped on loopback");
}

/// What the link does not carry in time is taken back by key frames, and only by these: the flow is reliable.
#[test]
fn over_a_link_that_is_too_slow_for_it_a_video_skips_deltas_and_goes_on() {
    if !require!() {
        return;
    }
    let program = example("video");
    let lab = Lab::new().unwrap();
    let hosts = ["screen", "camera"].map(|name| lab.host(name).unwrap());
    // A third of what it would take.
    let link = lab.link(&hosts[0], &hosts[1], LinkSpec::default().rate(Rate::kbit(400))).unwrap();
    for (host, address) in hosts.iter().zip(["10.0.1.1/24", "10.0.1.2/24"]) {
        link.end(host).add_address(address).unwrap();
    }
    let showing = Running::inside(&hosts[0], &program, &[]);
    let ticket = showing.line();
    let _sending = Running::inside(&hosts[1], &program, &[&ticket]);
    let numbers = showing.until(|numbers| numbers.len() == 3 && numbers[2] >= 30.0);
    let [frame, shown, skipped] = numbers[..] else { panic!("{numbers:?}") };
    assert_eq!(shown + skipped, frame + 1.0, "every frame is shown or skipped");
    assert!(shown >= 2.0, "{numbers:?}");
    showing.until(|numbers| numbers.len() == 3 && numbers[1] > shown && numbers[2] > skipped);
}
