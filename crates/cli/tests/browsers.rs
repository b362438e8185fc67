//! A download that was begun in Chromium on one device goes on in Firefox on the other: real browsers,
//! without a screen, and a real HTTP server that knows nothing of it. `scripts/setup.sh browsers` installs
//! both.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use crate::browser::{self, Browser, CHROMIUM, FIREFOX, Reaches, installed, wait_for};
use crate::common::{Process, World, dead_port};
use crate::download::{HALF, SERVER, SIZE, proxy, random, requests};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// What the file in a folder has in it that has so many bytes. Browsers call files otherwise while they load
/// them, and rename them at any moment.
fn of_length(folder: &Path, length: usize) -> Option<Vec<u8>> {
    let files = fs::read_dir(folder).unwrap().map_while(Result::ok);
    let mut sized = files.filter(|file| file.metadata().is_ok_and(|known| known.len() == length as u64));
    let file = sized.next()?.path();
    fs::read(file).ok().filter(|bytes| bytes.len() == length)
}

/// Chromium begins to load a file into a folder, by way of a SOCKS proxy.
fn loading_in_chromium(program: &Path, home: &Path, proxy: &str, url: &str, into: &Path) -> Browser {
    let profile = home.join("chromium");
    fs::create_dir_all(profile.join("Default")).unwrap();
    let preferences = json!({
        "download": { "default_directory": into, "prompt_for_download": false },
        "savefile": { "default_directory": into },
    });
    fs::write(profile.join("Default/Preferences"), preferences.to_string()).unwrap();
    Browser::new(browser::chromium(program, home, Reaches::Socks(proxy)).arg(url))
}

/// What Firefox is told so that it does not ask its user where to put a file.
fn loads_into(folder: &Path) -> String {
    format!(
        "user_pref(\"browser.download.folderList\", 2);
user_pref(\"browser.download.dir\", {});
user_pref(\"browser.download.useDownloadDir\", true);
user_pref(\"browser.download.always_ask_before_handling_new_types\", false);
user_pref(\"browser.helperApps.neverAsk.saveToDisk\", \"application/octet-stream\");
",
        json!(folder)
    )
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
    let (chromium, firefox) = (installed(&CHROMIUM), installed(&FIREFOX));
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
    let browser = loading_in_chromium(&chromium, &world.path("phone"), &socks, &url, &first);
    wait_for("half of the file is on the disk", || of_length(&first, HALF));
    // A person closes the phone's browser, or it asks for the rest once more by itself, in a connection of
    // its own.
    browser.stop();
    let id = session(&world, "phone", &ticket, &to).unwrap()["id"].as_str().unwrap().to_owned();
    let handoff = ["handoff", &id, "--to", &desk, "--for", "10m", "--through", &ticket];
    world.run("phone", &handoff).succeeded();

    let profile = world.path("desk").join("firefox");
    browser::firefox_profile(&profile, Reaches::Directly, &loads_into(&second));
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
