//! A download that was begun in Chromium on one device goes on in Firefox on the other: real browsers,
//! without a screen, and a real HTTP server that knows nothing of it. `scripts/setup.sh browsers` installs
//! both.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/download.rs"]
mod download;

use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Process, World, dead_port};
use download::{HALF, SERVER, SIZE, proxy, random, requests};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// In the environment: a browser that is missing is an error.
const REQUIRED: &str = "WHIMBREL_BROWSERS";
/// Browsers start slowly.
const PATIENCE: Duration = Duration::from_secs(180);

/// Finds a program by one of its names, or tells past the test's own output that there is none.
fn installed(names: &[&str]) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&folders).collect();
    let mut files = names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    let found = files.find(|file| file.is_file());
    if found.is_none() {
        assert!(std::env::var_os(REQUIRED).is_none(), "none of {names:?} is installed");
        let _ = writeln!(std::io::stderr(), "skipped a test with browsers: there is no {}", names[0]);
    }
    found
}

#[track_caller]
fn wait_for<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = check() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// What the file in a folder has in it that has so many bytes. Browsers call files otherwise while they load
/// them, and rename them at any moment.
fn of_length(folder: &Path, length: usize) -> Option<Vec<u8>> {
    let files = fs::read_dir(folder).unwrap().map_while(Result::ok);
    let mut sized = files.filter(|file| file.metadata().is_ok_and(|known| known.len() == length as u64));
    let file = sized.next()?.path();
    fs::read(file).ok().filter(|bytes| bytes.len() == length)
}

/// A browser with all of its processes: none of them outlives this.
struct Browser(Process);

impl Browser {
    fn new(command: &mut Command) -> Self {
        command.env_remove("DISPLAY").env_remove("DBUS_SESSION_BUS_ADDRESS");
        Self(Process::start(command.stdin(Stdio::null()).process_group(0)))
    }

    /// Chromium begins to load a file into a folder, by way of a SOCKS proxy.
    fn chromium(program: &Path, home: &Path, proxy: &str, url: &str, into: &Path) -> Self {
        let profile = home.join("chromium");
        fs::create_dir_all(profile.join("Default")).unwrap();
        let preferences = json!({
            "download": { "default_directory": into, "prompt_for_download": false },
            "savefile": { "default_directory": into },
        });
        fs::write(profile.join("Default/Preferences"), preferences.to_string()).unwrap();
        let mut command = Command::new(program);
        command
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--no-first-run", "--no-default-browser-check", "--disable-background-networking"])
            .args(["--disable-component-update", "--disable-extensions", "--disable-sync"])
            .args(["--disable-breakpad", "--password-store=basic", "--mute-audio"])
            .arg("--disable-features=HttpsUpgrades,HttpsFirstBalancedModeAutoEnable,MediaRouter,Translate")
            .arg(format!("--proxy-server=socks5://{proxy}"))
            // It would go to this host itself otherwise.
            .arg("--proxy-bypass-list=<-loopback>")
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg(url)
            .env("HOME", home)
            .env("XDG_CONFIG_HOME", home)
            .env("XDG_CACHE_HOME", home);
        for name in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"] {
            command.env_remove(name);
        }
        Self::new(&mut command)
    }

    /// It does nothing more. What it was sent, it has.
    fn stop(&self) {
        kill_process_group(Pid::from_child(&self.0.child), Signal::STOP).unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.0.child), Signal::KILL);
    }
}

/// What Firefox is told so that it asks nobody: neither its user where to put a file, nor its maker anything.
fn firefox_profile(profile: &Path, into: &Path) {
    fs::create_dir_all(profile).unwrap();
    let folder = json!(into);
    let text = format!(
        "user_pref(\"browser.download.folderList\", 2);
user_pref(\"browser.download.dir\", {folder});
user_pref(\"browser.download.useDownloadDir\", true);
user_pref(\"browser.download.always_ask_before_handling_new_types\", false);
user_pref(\"browser.helperApps.neverAsk.saveToDisk\", \"application/octet-stream\");
user_pref(\"browser.safebrowsing.downloads.enabled\", false);
user_pref(\"browser.safebrowsing.malware.enabled\", false);
user_pref(\"browser.safebrowsing.phishing.enabled\", false);
user_pref(\"browser.shell.checkDefaultBrowser\", false);
user_pref(\"browser.startup.homepage_override.mstone\", \"ignore\");
user_pref(\"browser.aboutwelcome.enabled\", false);
user_pref(\"browser.region.network.url\", \"\");
user_pref(\"app.update.enabled\", false);
user_pref(\"app.normandy.enabled\", false);
user_pref(\"datareporting.policy.dataSubmissionEnabled\", false);
user_pref(\"dom.security.https_first\", false);
user_pref(\"dom.security.https_only_mode\", false);
user_pref(\"extensions.update.enabled\", false);
user_pref(\"media.gmp-manager.url\", \"\");
user_pref(\"network.captive-portal-service.enabled\", false);
user_pref(\"network.connectivity-service.enabled\", false);
user_pref(\"network.proxy.type\", 0);
user_pref(\"network.trr.mode\", 5);
user_pref(\"services.settings.server\", \"\");
user_pref(\"toolkit.telemetry.server\", \"\");
"
    );
    fs::write(profile.join("user.js"), text).unwrap();
}

/// The session that leads there, as a device is told of it: of several, the one that has carried most. A
/// browser may have connections in store.
fn session(world: &World, device: &str, ticket: &str, to: &str) -> Option<Value> {
    let listed = world.run(device, &["sessions", "--json", "--through", ticket]).succeeded().json();
    let sessions = listed["sessions"].as_array().unwrap().iter().filter(|it| it["to"] == to);
    sessions.max_by_key(|it| it["down"].as_u64()).cloned()
}

#[test]
fn a_download_that_was_begun_in_chromium_goes_on_in_firefox_on_the_other_device() {
    let chromium = installed(&["chromium", "chromium-browser", "google-chrome"]);
    let firefox = installed(&["firefox-esr", "firefox"]);
    let (Some(chromium), Some(firefox)) = (chromium, firefox) else { return };
    let (world, at, file) = (World::new(), dead_port(), random());
    let [site, first, second] = ["site", "first", "second"].map(|name| world.path(name));
    for folder in [&site, &first, &second] {
        fs::create_dir(folder).unwrap();
    }
    fs::write(site.join("film"), &file).unwrap();
    let mut python = Command::new("python3");
    python.args(["-u", "-c", SERVER, &at.port().to_string()]).arg(&site).arg(world.path("go"));
    let server = Process::start(&mut python);
    wait_for("the server listens", || TcpStream::connect(at).ok());
    let [phone, desk] = ["phone", "desk"].map(|device| world.id(device));
    let gate = ["gateway", "serve", "--ticket", "--json", "--to", "127.0.0.1", "--allow", &phone];
    let mut gateway = world.start("gate", &[&gate[..], &["--allow", &desk]].concat());
    let ticket = gateway.next_json()["ticket"].as_str().unwrap().to_owned();
    let (socks, _serving) = proxy(&world, "socks", &ticket);

    let (url, to) = (format!("http://{at}/film"), at.to_string());
    let browser = Browser::chromium(&chromium, &world.path("phone"), &socks, &url, &first);
    wait_for("half of the file is on the disk", || of_length(&first, HALF));
    // A person closes the phone's browser, or it asks for the rest once more by itself, in a connection of
    // its own.
    browser.stop();
    let id = session(&world, "phone", &ticket, &to).unwrap()["id"].as_str().unwrap().to_owned();
    let handoff = ["handoff", &id, "--to", &desk, "--for", "10m", "--through", &ticket];
    world.run("phone", &handoff).succeeded();

    let profile = world.path("desk").join("firefox");
    firefox_profile(&profile, &second);
    // The flags that each command of a test gets go to the shell, which has no use for them.
    let script =
        format!("exec {} --headless --no-remote --profile {} \"$0\"", firefox.display(), profile.display());
    let take = ["take", &id, "--through", &ticket, "--as", "http", "--", "sh", "-c", &script, "{url}film"];
    let mut taking = world.command("desk", &take);
    let taking = Browser::new(taking.env("MOZ_CRASHREPORTER_DISABLE", "1"));
    wait_for("Firefox has it", || {
        let listed = session(&world, "desk", &ticket, &to)?;
        (listed["moves"] == 1).then_some(())
    });
    fs::write(world.path("go"), "").unwrap();
    let rest = wait_for("the rest is on the disk", || of_length(&second, SIZE - HALF));
    let begun = wait_for("what Chromium has is on the disk", || of_length(&first, HALF));
    assert_eq!(Sha256::digest([begun, rest].concat()), Sha256::digest(&file));
    drop((taking, browser));
    assert_eq!(requests(server), 1, "the server saw one request, on one connection");
}
