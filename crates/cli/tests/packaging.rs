//! What the repository promises about building and installing, checked with the tools of those who install
//! it.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::{PROGRAM, World};
use serde_json::Value;
use tempfile::TempDir;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// `1.91` or `1.91.2`.
fn version(text: &str) -> Vec<u32> {
    text.split('.').map(|part| part.parse().unwrap()).collect()
}

/// Clippy's `incompatible_msrv` checks our own code against the same version.
#[test]
fn no_package_needs_a_newer_rust_than_we_promise() {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--locked",
            "--filter-platform",
            "x86_64-unknown-linux-gnu",
        ])
        .current_dir(repository())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let own = packages.iter().find(|package| package["name"] == "whimbrel-cli").unwrap();
    let promised = version(own["rust_version"].as_str().unwrap());
    let mut checked = 0;
    for package in packages {
        if let Some(needed) = package["rust_version"].as_str() {
            assert!(version(needed) <= promised, "{} needs Rust {needed}", package["name"]);
            checked += 1;
        }
    }
    assert!(checked > 100, "only {checked} packages tell what they need");
}

/// By `.cargo/config.toml`, which cargo reads for tests that it runs, and scripts/run-tests.py for those that
/// it does.
#[test]
fn property_tests_try_the_same_cases_in_every_run_unless_somebody_wants_others() {
    let seed = std::env::var("PROPTEST_RNG_SEED").unwrap();
    assert!(seed.parse::<u64>().is_ok(), "{seed}");
}

#[track_caller]
fn run(program: &str, args: &[&str], directory: &Path) -> Output {
    let output = Command::new(program)
        .args(args)
        .current_dir(directory)
        .env("XDG_RUNTIME_DIR", directory)
        .env("DEB_COMPRESSION", "none")
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}; scripts/setup.sh test installs it"));
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
    output
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Manual pages and completions, as the packages have them.
fn pages(folder: &TempDir) -> PathBuf {
    let pages = folder.path().join("pages");
    run("sh", &[text(&repository().join("scripts/pages.sh")), PROGRAM, text(&pages)], folder.path());
    pages
}

#[test]
fn every_command_has_a_manual_page_that_man_can_show() {
    let folder = tempfile::tempdir().unwrap();
    let manual = pages(&folder).join("man");
    let mut names: Vec<String> = fs::read_dir(&manual)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    for command in ["whimbrel", "whimbrel-expose", "whimbrel-names-serve", "whimbrel-receive"] {
        assert!(names.contains(&format!("{command}.1")), "{command}: {names:?}");
    }
    for name in names {
        let output = run("man", &["--warnings", "-l", text(&manual.join(&name))], folder.path());
        let (page, warned) =
            (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert!(page.contains("SYNOPSIS") && page.contains("Example"), "{name}: {page}");
        assert_eq!(warned, "", "{name}");
    }
}

#[test]
fn completions_are_what_the_shell_can_read() {
    let folder = tempfile::tempdir().unwrap();
    let completions = pages(&folder).join("completions");
    let script = text(&completions.join("whimbrel.bash")).to_owned();
    // What bash offers after `whimbrel ex`.
    let ask = format!(
        "source {script}; COMP_WORDS=(whimbrel ex); COMP_CWORD=1; _whimbrel whimbrel ex whimbrel; echo ${{COMPREPLY[@]}}"
    );
    let output = run("bash", &["-c", &ask], folder.path());
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), "expose");
    World::new().run("a", &["help", "completions", "tcsh"]).failed(2, &["tcsh", "bash", "fish", "zsh"]);
}

#[test]
fn the_debian_package_holds_the_program_and_all_that_belongs_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let (pages, package) = (pages(&folder), folder.path().join("whimbrel.deb"));
    let script = repository().join("scripts/deb.sh");
    run("sh", &[text(&script), PROGRAM, "amd64", text(&pages), text(&package)], folder.path());
    let listed = String::from_utf8(run("dpkg-deb", &["-c", text(&package)], folder.path()).stdout).unwrap();
    for (mode, file) in [
        ("-rwxr-xr-x", "./usr/bin/whimbrel"),
        ("-rw-r--r--", "./usr/lib/systemd/system/whimbrel-access.service"),
        ("-rw-r--r--", "./usr/lib/systemd/system/whimbrel-names.service"),
        ("-rw-r--r--", "./usr/lib/systemd/system/whimbrel-names.socket"),
        ("-rw-r--r--", "./usr/lib/systemd/system/whimbrel-relay.service"),
        ("-rw-r--r--", "./usr/lib/systemd/system/whimbrel-serve.service"),
        ("-rw-r--r--", "./usr/lib/systemd/system/whimbrel-steer.service"),
        ("-rw-r--r--", "./usr/lib/systemd/system/whimbrel-steer@.service"),
        ("-rw-r--r--", "./usr/lib/systemd/user/whimbrel-access.service"),
        ("-rw-r--r--", "./usr/lib/systemd/user/whimbrel-agent.service"),
        ("-rw-r--r--", "./usr/lib/systemd/user/whimbrel-expose@.service"),
        ("-rw-r--r--", "./usr/lib/systemd/user/whimbrel-forward@.service"),
        ("-rw-r--r--", "./usr/lib/systemd/user/whimbrel-renew.service"),
        ("-rw-r--r--", "./usr/lib/systemd/user/whimbrel-renew.timer"),
        ("-rw-r--r--", "./usr/share/man/man1/whimbrel.1.gz"),
        ("-rw-r--r--", "./usr/share/man/man1/whimbrel-names-serve.1.gz"),
        ("-rw-r--r--", "./usr/share/bash-completion/completions/whimbrel"),
        ("-rw-r--r--", "./usr/share/zsh/vendor-completions/_whimbrel"),
        ("-rw-r--r--", "./usr/share/fish/vendor_completions.d/whimbrel.fish"),
        ("-rw-r--r--", "./usr/share/doc/whimbrel/copyright"),
        ("-rw-r--r--", "./usr/share/doc/whimbrel/THIRD-PARTY.gz"),
        ("-rw-r--r--", "./etc/whimbrel/names.toml"),
        ("-rw-r--r--", "./etc/whimbrel/relay.toml"),
        ("-rw-r--r--", "./etc/whimbrel/serve.toml"),
    ] {
        let line = listed.lines().find(|line| line.ends_with(&format!(" {file}")));
        let line = line.unwrap_or_else(|| panic!("no {file} in: {listed}"));
        assert!(line.starts_with(&format!("{mode} root/root")), "{line}");
    }
    let field = |name: &str| run("dpkg-deb", &["-f", text(&package), name], folder.path()).stdout;
    assert_eq!(String::from_utf8(field("Version")).unwrap().trim(), env!("CARGO_PKG_VERSION"));
    // What is in it runs.
    let root = folder.path().join("root");
    run("dpkg-deb", &["-x", text(&package), text(&root)], folder.path());
    let version = run(text(&root.join("usr/bin/whimbrel")), &["--version"], folder.path()).stdout;
    assert_eq!(String::from_utf8(version).unwrap(), format!("whimbrel {}\n", env!("CARGO_PKG_VERSION")));
    run(PROGRAM, &["--config", text(&root.join("etc/whimbrel/names.toml")), "id", "--help"], folder.path());
}

#[test]
fn systemd_accepts_every_unit() {
    let folder = tempfile::tempdir().unwrap();
    for manager in ["system", "user"] {
        for entry in fs::read_dir(repository().join("packaging/systemd").join(manager)).unwrap() {
            let unit = entry.unwrap().path();
            // systemd looks whether the program is there.
            let copy = folder.path().join(unit.file_name().unwrap());
            let said = fs::read_to_string(&unit).unwrap();
            // A timer or socket starts the service of its name.
            let service = unit.with_extension("service");
            let started = fs::read_to_string(&service).unwrap();
            assert!(started.contains("ExecStart=/usr/bin/whimbrel "), "{}", unit.display());
            if unit != service {
                let beside = folder.path().join(service.file_name().unwrap());
                fs::write(beside, started.replace("/usr/bin/whimbrel", PROGRAM)).unwrap();
            }
            fs::write(&copy, said.replace("/usr/bin/whimbrel", PROGRAM)).unwrap();
            let args = [&format!("--{manager}"), "--man=no", "verify", text(&copy)];
            let output = run("systemd-analyze", &args, folder.path());
            let warned = String::from_utf8(output.stderr).unwrap();
            // It may have something to say of units of this machine.
            let name = unit.file_name().unwrap().to_str().unwrap();
            assert!(!warned.contains(name), "{warned}");
        }
    }
}

/// The command line that a unit starts, with systemd's `%` words replaced, as arguments for the program.
fn command_line(unit: &str, words: &[(&str, &Path)]) -> Vec<String> {
    let unit = fs::read_to_string(repository().join("packaging/systemd").join(unit)).unwrap();
    let line = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/whimbrel ")).unwrap();
    let line = words.iter().fold(line.to_owned(), |line, (word, path)| line.replace(word, text(path)));
    assert!(!line.contains('%'), "{line}");
    line.split(' ').map(str::to_owned).collect()
}

#[test]
fn the_units_command_lines_start_what_they_are_for() {
    let (mut world, _names) = World::with_names();
    let config = world.path("config");
    fs::create_dir_all(config.join("whimbrel")).unwrap();
    fs::create_dir(world.path("whimbrel-names")).unwrap();
    let etc = repository().join("packaging");
    let args =
        command_line("system/whimbrel-names.service", &[("/etc/whimbrel", &etc), ("%S", world.dir.path())]);
    let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
    args.extend(["--port", "0", "--json", "--allow", "any"]);
    let mut names = world.start("names", &args);
    world.set_service(names.next_json()["ticket"].as_str().unwrap());
    for file in ["identity", "names.redb"] {
        assert!(world.path("whimbrel-names").join(file).exists(), "{file}");
    }

    let words: [(&str, &Path); 2] = [("/etc/whimbrel", &etc), ("%S", world.dir.path())];
    for (service, files) in [("relay", &["identity"][..]), ("serve", &["identity", "names.redb"][..])] {
        let folder = format!("whimbrel-{service}");
        fs::create_dir(world.path(&folder)).unwrap();
        let args = command_line(&format!("system/{folder}.service"), &words);
        let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
        args.extend(["--port", "0", "--json", "--allow", "any"]);
        let mut served = world.start(service, &args);
        assert!(served.next_json()["ticket"].as_str().unwrap().starts_with("whimbrel:"), "{service}");
        for file in files {
            assert!(world.path(&folder).join(file).exists(), "{service}: {file}");
        }
    }

    let words: [(&str, &Path); 2] = [("%E", &config), ("%i", "web".as_ref())];
    let flags = "[expose]\nname = \"web.a@example.org\"\nto = \"127.0.0.1:1\"\nallow = [\"any\"]\njson = true\n\
                 [forward]\nname = \"web.a@example.org\"\njson = true\n";
    fs::write(config.join("whimbrel/web.toml"), flags).unwrap();
    let start = |user, unit| {
        let args = command_line(unit, &words);
        world.start(user, &args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let mut expose = start("a", "user/whimbrel-expose@.service");
    assert_eq!(expose.next_json()["name"], "web.a@example.org");
    let mut forward = start("b", "user/whimbrel-forward@.service");
    assert_eq!(forward.next_json()["name"], "web.a@example.org");

    let args = command_line("user/whimbrel-access.service", &words);
    let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
    args.push("--json");
    let mut access = world.start("a", &args);
    assert!(access.next_json()["socket"].as_str().unwrap().ends_with("/whimbrel/access"));
    let mut args = command_line("system/whimbrel-access.service", &words);
    args.extend(["--json".to_owned(), "--socket".to_owned(), text(&world.path("host/access")).to_owned()]);
    let mut host = world.start("a", &args.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(host.next_json()["socket"].as_str().unwrap().ends_with("host/access"));
    // These take a setting of the system over; what they do, the tests of `multiaccess` show in the lab.
    for (unit, user) in [("system/whimbrel-steer.service", "0"), ("system/whimbrel-steer@.service", "1000")] {
        let args = command_line(unit, &[("%i", user.as_ref())]);
        assert_eq!(args[..2], ["access", "steer"]);
        let output = Command::new(PROGRAM).args(&args).arg("--help").output().unwrap();
        assert!(output.status.success(), "{args:?}");
    }

    let mut gate = world.start("gate", &["gateway", "serve", "--ticket", "--json", "--allow", "any"]);
    let ticket = gate.next_json()["ticket"].as_str().unwrap().to_owned();
    let flags = format!("[agent]\nthrough = \"{ticket}\"\njson = true\n");
    fs::write(world.config("b", "config.toml"), flags).unwrap();
    let apps = "[[app]]\nmatch = \"http\"\nadapter = \"http\"\nrun = [\"true\", \"{url}\"]\n";
    fs::write(world.config("b", "apps.toml"), apps).unwrap();
    let mut agent = start("b", "user/whimbrel-agent.service");
    assert_eq!(agent.next_json()["apps"], 1);
}

#[test]
fn the_containers_command_line_starts_a_name_service_and_its_rust_is_the_one_that_setup_installs() {
    let container = fs::read_to_string(repository().join("packaging/Containerfile")).unwrap();
    let setup = fs::read_to_string(repository().join("scripts/setup.sh")).unwrap();
    let behind = |text: &str, word: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix(word));
        found.unwrap_or_else(|| panic!("no {word:?}")).to_owned()
    };
    let (image, toolchain) =
        (behind(&container, "FROM docker.io/library/rust:"), behind(&setup, "toolchain="));
    let rust = image.split('-').next().unwrap();
    assert!(toolchain.starts_with(&format!("{rust}.")), "{image} and {toolchain}");

    let words = |word: &str| serde_json::from_str::<Vec<String>>(&behind(&container, word)).unwrap();
    assert_eq!(words("ENTRYPOINT "), ["/usr/bin/whimbrel"]);
    let (listen, state) = ("0.0.0.0:4480", tempfile::tempdir().unwrap());
    assert_eq!(behind(&container, "EXPOSE "), "4480/tcp 4480/udp");
    let said = words("CMD ");
    assert!(said.iter().any(|word| word == listen), "{said:?}");
    // What is kept is kept in the volume.
    let volume = behind(&container, "VOLUME ");
    let place = |word: &String| word.replace(&volume, text(state.path())).replace(listen, "0.0.0.0:0");
    let args: Vec<String> = said.iter().map(place).collect();
    let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
    args.extend(["--json", "--allow", "any"]);
    let mut world = World::new();
    let mut names = world.start("names", &args);
    world.set_service(names.next_json()["ticket"].as_str().unwrap());
    for file in ["identity", "names.redb"] {
        assert!(state.path().join(file).exists(), "{file}");
    }
    world.run("ada", &["id", "register", "ada@example.org"]).succeeded();
}

/// By systemd's own measure, from 0 (nothing is open to it) to 10.
#[test]
fn the_services_of_the_system_are_locked_into_what_they_need() {
    for name in ["names", "relay", "serve", "access", "steer", "steer@"] {
        let unit = repository().join(format!("packaging/systemd/system/whimbrel-{name}.service"));
        let args = ["security", "--offline=true", "--threshold=25", text(&unit)];
        run("systemd-analyze", &args, &repository());
    }
}
