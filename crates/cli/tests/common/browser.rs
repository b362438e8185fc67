//! Real browsers without a screen, each with a profile of its own. `scripts/setup.sh browsers` installs them.
#![allow(clippy::unwrap_used, unreachable_pub)]

use std::fs;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};

use crate::common::{Process, wait_within};

/// In the environment: a browser that is missing is an error.
const REQUIRED: &str = "WHIMBREL_BROWSERS";
/// Browsers start slowly.
pub const PATIENCE: Duration = Duration::from_secs(180);

pub const CHROMIUM: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
pub const FIREFOX: [&str; 2] = ["firefox-esr", "firefox"];

/// Finds a program by one of its names, or tells past the test's own output that there is none.
pub fn installed(names: &[&str]) -> Option<PathBuf> {
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

/// As the common one, with the patience that browsers take.
#[track_caller]
pub fn wait_for<T>(what: &str, check: impl FnMut() -> Option<T>) -> T {
    wait_within(PATIENCE, what, check)
}

/// How a browser reaches servers.
#[derive(Clone, Copy, Debug)]
pub enum Reaches<'a> {
    /// By itself.
    Directly,
    /// Through an HTTP proxy at this address and port.
    Http(&'a str),
    /// Through a SOCKS proxy, which looks names up.
    Socks(&'a str),
    /// As the PAC file at this URL says.
    Pac(&'a str),
}

/// A browser with all of its processes: none of them outlives this.
pub struct Browser(Process);

impl Browser {
    pub fn new(command: &mut Command) -> Self {
        command.env_remove("DISPLAY").env_remove("DBUS_SESSION_BUS_ADDRESS");
        for name in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"] {
            command.env_remove(name);
        }
        Self(Process::start(command.stdin(Stdio::null()).process_group(0)))
    }

    /// It does nothing more. What it was sent, it has.
    pub fn stop(&self) {
        kill_process_group(Pid::from_child(&self.0.child), Signal::STOP).unwrap();
    }

    /// Waits until it has ended by itself. Returns what it said meanwhile, too.
    pub fn ended(mut self) -> (ExitStatus, String) {
        let status = wait_for("the browser ends", || self.0.child.try_wait().unwrap());
        (status, self.0.said())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.0.child), Signal::KILL);
    }
}

/// Chromium with a profile in this home, which asks for nothing but pages.
pub fn chromium(program: &Path, home: &Path, reaches: Reaches<'_>) -> Command {
    let mut command = Command::new(program);
    command
        .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
        .args(["--no-first-run", "--no-default-browser-check", "--disable-background-networking"])
        .args(["--disable-component-update", "--disable-extensions", "--disable-sync"])
        .args(["--disable-breakpad", "--password-store=basic", "--mute-audio"])
        .arg("--disable-features=HttpsUpgrades,HttpsFirstBalancedModeAutoEnable,MediaRouter,Translate")
        .arg(format!("--user-data-dir={}", home.join("chromium").display()));
    match reaches {
        Reaches::Directly => command.arg("--no-proxy-server"),
        Reaches::Http(at) => command.arg(format!("--proxy-server=http://{at}")),
        Reaches::Socks(at) => command.arg(format!("--proxy-server=socks5://{at}")),
        Reaches::Pac(url) => command.arg(format!("--proxy-pac-url={url}")),
    };
    if matches!(reaches, Reaches::Http(_) | Reaches::Socks(_)) {
        // It would go to this host itself otherwise.
        command.arg("--proxy-bypass-list=<-loopback>");
    }
    in_home(&mut command, home);
    command
}

/// Firefox with this profile.
pub fn firefox(program: &Path, profile: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["--headless", "--no-remote", "--profile"]).arg(profile);
    command.env("MOZ_CRASHREPORTER_DISABLE", "1");
    in_home(&mut command, profile);
    command
}

fn in_home(command: &mut Command, home: &Path) {
    command.env("HOME", home).env("XDG_CONFIG_HOME", home).env("XDG_CACHE_HOME", home);
}

/// A profile of Firefox, which asks its maker nothing, with what else is preferred.
pub fn firefox_profile(profile: &Path, reaches: Reaches<'_>, more: &str) {
    fs::create_dir_all(profile).unwrap();
    let text = format!("{FIREFOX_PREFERENCES}{}{more}", reached_by_firefox(reaches));
    fs::write(profile.join("user.js"), text).unwrap();
}

fn reached_by_firefox(reaches: Reaches<'_>) -> String {
    let by_hand = |kinds: &[(&str, &str)], at: &str| {
        let (host, port) = at.rsplit_once(':').unwrap();
        let places = kinds.iter().map(|(host_key, port_key)| {
            format!(
                "user_pref(\"network.proxy.{host_key}\", \"{host}\");
user_pref(\"network.proxy.{port_key}\", {port});
"
            )
        });
        // It would go to this host itself otherwise.
        "user_pref(\"network.proxy.type\", 1);
user_pref(\"network.proxy.no_proxies_on\", \"\");
user_pref(\"network.proxy.allow_hijacking_localhost\", true);
"
        .to_owned()
            + &places.collect::<String>()
    };
    match reaches {
        Reaches::Directly => "user_pref(\"network.proxy.type\", 0);\n".to_owned(),
        Reaches::Http(at) => by_hand(&[("http", "http_port"), ("ssl", "ssl_port")], at),
        Reaches::Socks(at) => {
            by_hand(&[("socks", "socks_port")], at)
                + "user_pref(\"network.proxy.socks_version\", 5);
user_pref(\"network.proxy.socks_remote_dns\", true);
"
        }
        Reaches::Pac(url) => format!(
            "user_pref(\"network.proxy.type\", 2);
user_pref(\"network.proxy.autoconfig_url\", \"{url}\");
"
        ),
    }
}

const FIREFOX_PREFERENCES: &str = r#"user_pref("browser.safebrowsing.downloads.enabled", false);
user_pref("browser.safebrowsing.malware.enabled", false);
user_pref("browser.safebrowsing.phishing.enabled", false);
user_pref("browser.shell.checkDefaultBrowser", false);
user_pref("browser.startup.homepage_override.mstone", "ignore");
user_pref("browser.aboutwelcome.enabled", false);
user_pref("browser.region.network.url", "");
user_pref("app.update.enabled", false);
user_pref("app.normandy.enabled", false);
user_pref("datareporting.policy.dataSubmissionEnabled", false);
user_pref("dom.security.https_first", false);
user_pref("dom.security.https_only_mode", false);
user_pref("extensions.update.enabled", false);
user_pref("media.gmp-manager.url", "");
user_pref("network.captive-portal-service.enabled", false);
user_pref("network.connectivity-service.enabled", false);
user_pref("network.trr.mode", 5);
user_pref("services.settings.server", "");
user_pref("toolkit.telemetry.server", "");
"#;
