//! tinyproxy on a machine of the lab, as a company has it.
#![allow(clippy::unwrap_used, unreachable_pub)]

use std::fs;
use std::path::Path;

use whimbrel_lab::{Host, HostChild};

use crate::machines::{silent, wait_for_server};

/// Starts one that connects to port 443 only, as such proxies do, for the network whose first three numbers
/// are these. The host is 1 in it.
pub fn tinyproxy(host: &Host, network: &str, folder: &Path) -> HostChild {
    let file = folder.join(format!("tinyproxy-{network}.conf"));
    let listen = format!("Port 8888\nListen {network}.1\nAllow {network}.0/24\n");
    fs::write(&file, listen + "ConnectPort 443\nTimeout 600\n").unwrap();
    let child = silent(host.command("tinyproxy").arg("-d").arg("-c").arg(&file)).spawn().unwrap();
    wait_for_server(host, &address(network));
    child
}

/// Where the one of a network is.
pub fn address(network: &str) -> String {
    format!("{network}.1:8888")
}
