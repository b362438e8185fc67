//! Programs that know nothing of tunnels, through `whimbrel expose` and `forward`, `ssh -L`, stunnel, and
//! directly.
//!
//! All on the loopback interface of one host of the lab: iperf3 one stream each way, redis-benchmark's GET
//! with 1 and with 50 clients.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use whimbrel_lab::{Host, HostChild, Lab};

use super::{Plan, rotated};
use crate::lab::program::{self, Folder, Tunnel};
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};

/// Of the first system's server; each has its own, so that none waits for the end of another's test.
const IPERF: u16 = 5201;
const REDIS: u16 = 6379;
const SSHD: u16 = 2222;
const STUNNEL: u16 = 30_000;
const SYSTEMS: [System; 4] = [System::Whimbrel, System::Ssh, System::Stunnel, System::Direct];

const SPEC: Spec = Spec {
    name: "tunnel",
    title: "unmodified programs through a tunnel, loopback; of_better: of the better of ssh -L and stunnel",
    metrics: &[
        Metric { key: "rate", unit: "Gbit/s" },
        Metric { key: "requests", unit: "1/s" },
        Metric { key: "of_better", unit: "of better" },
    ],
    targets: &[Target {
        case: "",
        of: "whimbrel",
        metric: "of_better",
        against: None,
        judged: Judged::Median,
        bound: Bound::AtLeast(1.0),
        aim: 2.0,
    }],
    plot: Plot::Cases { metric: "of_better", unit: "of the better of ssh -L and stunnel" },
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum System {
    Whimbrel,
    Ssh,
    Stunnel,
    Direct,
}

impl System {
    fn name(self) -> &'static str {
        match self {
            Self::Whimbrel => "whimbrel",
            Self::Ssh => "ssh -L",
            Self::Stunnel => "stunnel",
            Self::Direct => "direct",
        }
    }

    /// What is added to a service's port to get the tunnel's.
    fn offset(self) -> u16 {
        match self {
            Self::Direct => 0,
            Self::Whimbrel => 10_000,
            Self::Ssh => 20_000,
            Self::Stunnel => 40_000,
        }
    }

    /// Where the system's own iperf3 server listens.
    fn iperf(self) -> u16 {
        IPERF + self as u16
    }

    fn port(self, service: u16) -> u16 {
        service + self.offset()
    }
}

/// What is done, and with how much.
#[derive(Debug, Clone, Copy)]
enum Work {
    Iperf { reverse: bool },
    Redis { clients: u32, requests: u32 },
}

impl Work {
    const ALL: [Self; 4] = [
        Self::Iperf { reverse: false },
        Self::Iperf { reverse: true },
        Self::Redis { clients: 1, requests: 20_000 },
        Self::Redis { clients: 50, requests: 100_000 },
    ];

    fn case(self) -> String {
        match self {
            Self::Iperf { reverse: false } => "iperf3, to the server".into(),
            Self::Iperf { reverse: true } => "iperf3, from the server".into(),
            Self::Redis { clients, .. } => format!("redis GET, clients {clients}"),
        }
    }

    fn metric(self) -> &'static str {
        if matches!(self, Self::Iperf { .. }) { "rate" } else { "requests" }
    }
}

pub(crate) fn run(plan: &Plan, output: &mut Output) -> Result<()> {
    let tools = Tools::find()?;
    let lab = Lab::new()?;
    let host = lab.host("loopback")?;
    let stage = Stage::start(&tools, &host)?;
    let seconds = plan.length(3.0).as_secs().max(1);
    let mut trials = Vec::new();
    for round in 0..plan.rounds(3) {
        for work in Work::ALL {
            let mut values = Vec::new();
            for system in rotated(&SYSTEMS, round) {
                let value = stage
                    .measure(system, work, seconds, plan.quick)
                    .with_context(|| format!("{} through {}", work.case(), system.name()))?;
                values.push((system, value));
            }
            let of = |system| values.iter().find(|(other, _)| *other == system).map_or(f64::NAN, |(_, v)| *v);
            let better = of(System::Ssh).max(of(System::Stunnel));
            for &(system, value) in &values {
                let trial = Trial::new(system.name(), round).in_case(work.case());
                let trial = trial.with(work.metric(), value).with("of_better", value / better);
                output.trial(&SPEC, &trial);
                trials.push(trial);
            }
        }
    }
    let settings = json!({ "carrier": "auto", "iperf3_seconds": seconds, "versions": stage.versions });
    output.finish(&SPEC, settings, &trials)
}

/// The programs that it takes.
struct Tools {
    iperf: PathBuf,
    redis_server: PathBuf,
    redis_benchmark: PathBuf,
    sshd: PathBuf,
    ssh: PathBuf,
    ssh_keygen: PathBuf,
    stunnel: PathBuf,
    openssl: PathBuf,
}

impl Tools {
    fn find() -> Result<Self> {
        program::whimbrel()?;
        ensure!(rustix::process::getuid().is_root(), "sshd changes users, which needs root");
        Ok(Self {
            iperf: program::find("iperf3", "iperf3")?,
            redis_server: program::find("redis-server", "redis-server")?,
            redis_benchmark: program::find("redis-benchmark", "redis-tools")?,
            sshd: program::find("sshd", "openssh-server")?,
            ssh: program::find("ssh", "openssh-client")?,
            ssh_keygen: program::find("ssh-keygen", "openssh-client")?,
            stunnel: program::find("stunnel4", "stunnel4")
                .or_else(|_| program::find("stunnel", "stunnel4"))?,
            openssl: program::find("openssl", "openssl")?,
        })
    }
}

/// All servers and tunnels, running.
struct Stage<'a> {
    tools: &'a Tools,
    host: &'a Host,
    versions: Value,
    _tunnels: [Tunnel; 2],
    _children: Vec<HostChild>,
    _folder: Folder,
}

impl<'a> Stage<'a> {
    fn start(tools: &'a Tools, host: &'a Host) -> Result<Self> {
        let folder = Folder::new("tunnel")?;
        let redis = REDIS.to_string();
        let arguments = ["--port", &redis, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
        let mut children = vec![program::start(host, &tools.redis_server, &arguments)?];
        for system in SYSTEMS {
            children.push(program::start(host, &tools.iperf, &["-s", "-p", &system.iperf().to_string()])?);
        }
        program::wait_for_port(host, local(REDIS))?;
        children.extend(ssh(tools, host, &folder)?);
        children.extend(stunnel(tools, host, &folder)?);
        let tunnel = |service| {
            let listen = local(System::Whimbrel.port(service));
            Tunnel::start(&folder, [host, host], listen, local(service), &["--address", "127.0.0.1"])
        };
        let _tunnels = [tunnel(System::Whimbrel.iperf())?, tunnel(REDIS)?];
        // iperf3's servers would take this for the beginning of a test; they and the way to them are there as
        // well.
        for system in SYSTEMS {
            program::wait_for_port(host, local(system.port(REDIS)))?;
        }
        let versions = json!({
            "iperf3": first_line(host, &tools.iperf, "--version"),
            "redis": first_line(host, &tools.redis_server, "--version"),
        });
        Ok(Self { tools, host, versions, _tunnels, _children: children, _folder: folder })
    }

    fn measure(&self, system: System, work: Work, seconds: u64, quick: bool) -> Result<f64> {
        match work {
            Work::Iperf { reverse } => {
                let (port, seconds) = (system.port(system.iperf()).to_string(), seconds.to_string());
                let mut arguments = vec!["-c", "127.0.0.1", "-p", &port, "-t", &seconds, "-J"];
                if reverse {
                    arguments.push("-R");
                }
                let found: Value =
                    serde_json::from_str(&program::run(self.host, &self.tools.iperf, &arguments)?)?;
                let bits = found["end"]["sum_received"]["bits_per_second"].as_f64();
                let problem = || format!("iperf3 tells no rate: {}", found["error"]);
                Ok(bits.with_context(problem)? / 1e9)
            }
            Work::Redis { clients, requests } => {
                let requests = if quick { requests / 10 } else { requests };
                let numbers =
                    [u32::from(system.port(REDIS)), clients, requests].map(|number| number.to_string());
                let [port, clients, requests] = &numbers;
                let arguments =
                    ["-h", "127.0.0.1", "-p", port, "-t", "get", "-c", clients, "-n", requests, "--csv"];
                let printed = program::run(self.host, &self.tools.redis_benchmark, &arguments)?;
                requests_per_second(&printed).context("redis-benchmark tells no rate")
            }
        }
    }
}

/// The second field of the line about GET.
fn requests_per_second(csv: &str) -> Option<f64> {
    let line = csv.lines().find(|line| line.starts_with("\"GET\""))?;
    line.split(',').nth(1)?.trim_matches('"').parse().ok()
}

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

fn first_line(host: &Host, program: &Path, argument: &str) -> String {
    let printed = program::run(host, program, &[argument]).unwrap_or_default();
    printed.lines().next().unwrap_or_default().to_owned()
}

/// sshd with keys made for this, and `ssh -L` for both services.
fn ssh(tools: &Tools, host: &Host, folder: &Folder) -> Result<[HostChild; 2]> {
    let [host_key, user_key] = ["host_key", "user_key"].map(|name| folder.join(name));
    for key in [&host_key, &user_key] {
        program::run(
            host,
            &tools.ssh_keygen,
            &["-q", "-t", "ed25519", "-N", "", "-f", &key.to_string_lossy()],
        )?;
    }
    // sshd's privilege separation needs it.
    std::fs::create_dir_all("/run/sshd").context("cannot make /run/sshd")?;
    let config = folder.join("sshd_config");
    let text = format!(
        "ListenAddress 127.0.0.1:{SSHD}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nStrictModes no\n\
         PermitRootLogin yes\nPasswordAuthentication no\nUsePAM no\n",
        host_key.display(),
        user_key.with_extension("pub").display(),
    );
    std::fs::write(&config, text)?;
    let server = program::start(host, &tools.sshd, &["-D", "-e", "-f", &config.to_string_lossy()])?;
    program::wait_for_port(host, local(SSHD))?;
    let forward = |service| format!("127.0.0.1:{}:127.0.0.1:{service}", System::Ssh.port(service));
    let arguments = [
        "-N",
        "-F",
        "none",
        "-o",
        "StrictHostKeyChecking=no",
        "-o",
        "UserKnownHostsFile=/dev/null",
        "-o",
        "BatchMode=yes",
        "-o",
        "ExitOnForwardFailure=yes",
    ];
    let arguments = arguments.map(String::from).into_iter().chain([
        "-i".into(),
        user_key.to_string_lossy().into_owned(),
        "-p".into(),
        SSHD.to_string(),
        "-L".into(),
        forward(System::Ssh.iperf()),
        "-L".into(),
        forward(REDIS),
        "root@127.0.0.1".into(),
    ]);
    let client = program::start(host, &tools.ssh, &arguments.collect::<Vec<String>>())?;
    Ok([server, client])
}

/// A stunnel on each side, with a certificate made for this.
fn stunnel(tools: &Tools, host: &Host, folder: &Folder) -> Result<[HostChild; 2]> {
    let [key, certificate] = ["key.pem", "certificate.pem"].map(|name| folder.join(name));
    let [key_name, certificate_name] = [&key, &certificate].map(|path| path.to_string_lossy().into_owned());
    let arguments = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    let names = ["-subj", "/CN=localhost", "-days", "2", "-keyout", &key_name, "-out", &certificate_name];
    program::run(host, &tools.openssl, &[&arguments[..], &names[..]].concat())?;
    let middle = |service: u16| service + STUNNEL;
    let section = |name: &str, service: u16, is_client: bool| {
        let (accept, connect) = if is_client {
            (System::Stunnel.port(service), middle(service))
        } else {
            (middle(service), service)
        };
        format!("[{name}]\naccept = 127.0.0.1:{accept}\nconnect = 127.0.0.1:{connect}\n")
    };
    let config = |is_client: bool| {
        let role = if is_client {
            "client = yes\n".to_owned()
        } else {
            format!("cert = {certificate_name}\nkey = {key_name}\n")
        };
        let sections =
            section("iperf", System::Stunnel.iperf(), is_client) + &section("redis", REDIS, is_client);
        let socket = "socket = l:TCP_NODELAY=1\nsocket = r:TCP_NODELAY=1\n";
        format!("foreground = yes\npid =\nsslVersionMin = TLSv1.3\n{socket}{role}{sections}")
    };
    let start = |name: &str, is_client: bool| -> Result<HostChild> {
        let file = folder.join(name);
        std::fs::write(&file, config(is_client))?;
        program::start(host, &tools.stunnel, &[file])
    };
    Ok([start("stunnel-server.conf", false)?, start("stunnel-client.conf", true)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_get_is_found() {
        let csv = "\"test\",\"rps\",\"avg_latency_ms\"\n\"GET\",\"131578.95\",\"0.2\"\n";
        assert_eq!(requests_per_second(csv), Some(131_578.95));
        assert_eq!(requests_per_second("\"SET\",\"1\""), None);
    }

    #[test]
    fn no_two_tunnels_share_a_port() {
        let tunnels = SYSTEMS.iter().filter(|system| **system != System::Direct);
        let mut ports: Vec<u16> =
            tunnels.flat_map(|system| [system.iperf(), REDIS].map(|service| system.port(service))).collect();
        ports.extend(SYSTEMS.map(System::iperf));
        ports.extend([SSHD, REDIS, System::Stunnel.iperf() + STUNNEL, REDIS + STUNNEL]);
        let count = ports.len();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), count);
    }
}
