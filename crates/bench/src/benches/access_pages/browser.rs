//! Real browsers without a screen: fresh profiles, so that every cache is cold.

use std::fmt;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use whimbrel_lab::{Host, HostChild, HostCommand};

use super::server::{Said, Server};
use super::system::System;
use super::world::World;
use crate::lab::program;

/// How long a browser may take to start and load a page.
const LIMIT: Duration = Duration::from_secs(180);
/// Processes of a browser may write a moment longer than it lives.
const REMOVALS: u32 = 40;

/// What loads pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Browser {
    /// A small loader with a browser's rules, which needs nothing installed.
    Client,
    Chromium,
    Firefox,
}

impl fmt::Display for Browser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client => "client",
            Self::Chromium => "chromium",
            Self::Firefox => "firefox",
        })
    }
}

/// A browser that is installed.
#[derive(Debug, Clone)]
pub(super) struct Installed {
    browser: Browser,
    program: PathBuf,
}

impl Installed {
    /// Finds it, or says which package brings it.
    pub(super) fn find(browser: Browser) -> Result<Self> {
        let names: &[&str] = match browser {
            Browser::Client => &[],
            Browser::Chromium => &["chromium", "chromium-browser", "google-chrome"],
            Browser::Firefox => &["firefox-esr", "firefox"],
        };
        let package = names.first().copied().context("the client is no program")?;
        let found = names.iter().find_map(|name| program::find(name, package).ok());
        let missing = || format!("there is no {browser}; scripts/setup.sh browsers installs it");
        Ok(Self { browser, program: found.with_context(missing)? })
    }

    pub(super) fn version(&self, host: &Host) -> String {
        let printed = program::run(host, &self.program, &["--version"]).unwrap_or_default();
        printed.lines().last().unwrap_or_default().trim().to_owned()
    }

    /// Starts with a fresh profile, loads a page, and returns what the page said.
    pub(super) fn load(
        &self,
        world: &mut World,
        document: usize,
        system: System,
        token: &str,
    ) -> Result<Said> {
        world.make_ready()?;
        let proxy = world.proxy(system)?;
        let profile = world.folder(token)?;
        let address = proxy.as_ref().map(|proxy| proxy.address);
        let host = &world.net.client.host;
        let running = self.start(host, &profile, address, &Server::start_page(document, token))?;
        let said = world.server.wait(token, LIMIT);
        drop(running);
        remove(&profile);
        said.with_context(|| format!("{} through {system}", self.browser))
    }

    fn start(&self, host: &Host, profile: &Path, proxy: Option<SocketAddr>, url: &str) -> Result<HostChild> {
        let command = host.command(&self.program.to_string_lossy());
        let command = match self.browser {
            Browser::Firefox => firefox(command, profile, proxy)?,
            Browser::Client | Browser::Chromium => chromium(command, profile, proxy),
        };
        let command = command.arg(url).env("HOME", profile).env("XDG_RUNTIME_DIR", profile);
        let command = command.env("XDG_CONFIG_HOME", profile).env("XDG_CACHE_HOME", profile);
        let quiet = command.with(|command| {
            for name in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"] {
                command.env_remove(name);
            }
            command.env_remove("DISPLAY").env_remove("DBUS_SESSION_BUS_ADDRESS");
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        });
        Ok(quiet.spawn()?)
    }
}

/// Nothing but the page is asked for: what Chromium asks its maker at a start would fill the links.
fn chromium(command: HostCommand, profile: &Path, proxy: Option<SocketAddr>) -> HostCommand {
    const FLAGS: [&str; 18] = [
        "--headless=new",
        // As root it has no sandbox; all that it loads is the bench's own.
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--no-default-browser-check",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-default-apps",
        "--disable-domain-reliability",
        "--disable-extensions",
        "--disable-sync",
        "--disable-breakpad",
        "--disable-client-side-phishing-detection",
        "--metrics-recording-only",
        "--password-store=basic",
        "--mute-audio",
        "--disable-features=HttpsUpgrades,HttpsFirstBalancedModeAutoEnable,OptimizationHints,MediaRouter,\
         Translate,NetworkTimeServiceQuerying",
    ];
    let proxied = match proxy {
        Some(address) => format!("--proxy-server=http://{address}"),
        None => "--no-proxy-server".to_owned(),
    };
    command.args(FLAGS).arg(format!("--user-data-dir={}", profile.display())).arg(proxied)
}

/// The same for Firefox. Connections are as it is shipped.
fn firefox(command: HostCommand, profile: &Path, proxy: Option<SocketAddr>) -> Result<HostCommand> {
    let mut preferences = FIREFOX.to_owned();
    match proxy {
        Some(address) => {
            preferences += &format!(
                "user_pref(\"network.proxy.type\", 1);\nuser_pref(\"network.proxy.http\", \"{}\");\n\
                 user_pref(\"network.proxy.http_port\", {});\nuser_pref(\"network.proxy.no_proxies_on\", \"\");\n",
                address.ip(),
                address.port()
            );
        }
        None => preferences += "user_pref(\"network.proxy.type\", 0);\n",
    }
    fs::write(profile.join("user.js"), preferences)?;
    Ok(command
        .args(["--headless", "--no-remote", "--profile"])
        .arg(profile)
        .env("MOZ_CRASHREPORTER_DISABLE", "1"))
}

const FIREFOX: &str = r#"user_pref("app.update.auto", false);
user_pref("app.update.enabled", false);
user_pref("app.normandy.enabled", false);
user_pref("app.shield.optoutstudies.enabled", false);
user_pref("browser.aboutwelcome.enabled", false);
user_pref("browser.newtabpage.enabled", false);
user_pref("browser.newtabpage.activity-stream.feeds.topsites", false);
user_pref("browser.region.network.url", "");
user_pref("browser.safebrowsing.malware.enabled", false);
user_pref("browser.safebrowsing.phishing.enabled", false);
user_pref("browser.safebrowsing.downloads.enabled", false);
user_pref("browser.search.update", false);
user_pref("browser.shell.checkDefaultBrowser", false);
user_pref("browser.startup.homepage_override.mstone", "ignore");
user_pref("browser.startup.page", 0);
user_pref("datareporting.healthreport.uploadEnabled", false);
user_pref("datareporting.policy.dataSubmissionEnabled", false);
user_pref("dom.security.https_first", false);
user_pref("dom.security.https_only_mode", false);
user_pref("extensions.systemAddon.update.enabled", false);
user_pref("extensions.update.enabled", false);
user_pref("extensions.getAddons.cache.enabled", false);
user_pref("media.gmp-manager.url", "");
user_pref("network.captive-portal-service.enabled", false);
user_pref("network.connectivity-service.enabled", false);
user_pref("network.dns.disablePrefetch", true);
user_pref("network.prefetch-next", false);
user_pref("network.trr.mode", 5);
user_pref("services.settings.server", "");
user_pref("toolkit.telemetry.enabled", false);
user_pref("toolkit.telemetry.unified", false);
user_pref("toolkit.telemetry.server", "");
"#;

fn remove(profile: &Path) {
    for _ in 0..REMOVALS {
        if fs::remove_dir_all(profile).is_ok() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
