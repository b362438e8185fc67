//! What an interface is: told by sysfs on Linux, unless somebody says it by hand.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use crate::locked::asks_the_kernel;

/// What kind of network an interface leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum InterfaceKind {
    /// A cable.
    Ethernet,
    /// A wireless local network.
    Wifi,
    /// A mobile network, also one reached through a phone's cable.
    Cellular,
    /// Anything else: tunnels, bridges, what is not known.
    Other,
}

impl InterfaceKind {
    const ALL: [Self; 4] = [Self::Ethernet, Self::Wifi, Self::Cellular, Self::Other];

    /// Its name, as in settings and on command lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ethernet => "ethernet",
            Self::Wifi => "wifi",
            Self::Cellular => "cellular",
            Self::Other => "other",
        }
    }

    /// Whether bytes on such a network usually cost something.
    #[must_use]
    pub const fn is_metered(self) -> bool {
        matches!(self, Self::Cellular)
    }

    /// The kind of this host's interface. Does not block for long: sysfs is memory.
    #[must_use]
    pub fn of(interface: &str) -> Self {
        asks_the_kernel();
        detect_in(Path::new("/sys/class/net"), interface)
    }
}

impl fmt::Display for InterfaceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no kind of interface has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no kind of interface {0:?}: try ethernet, wifi, cellular or other")]
pub struct UnknownKind(String);

impl FromStr for InterfaceKind {
    type Err = UnknownKind;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| UnknownKind(name.to_owned()))
    }
}

/// Drivers of modems, and of phones that share their network over a cable.
const MODEMS: [&str; 6] = ["qmi_wwan", "cdc_mbim", "sierra_net", "hso", "ipheth", "rndis_host"];
/// Hardware types (`if_arp.h`).
const ARPHRD_ETHER: &str = "1";
const ARPHRD_RAWIP: &str = "519";

fn detect_in(root: &Path, interface: &str) -> InterfaceKind {
    // What is no name of an interface must not lead elsewhere.
    if interface.is_empty() || interface.contains('/') || interface.starts_with('.') {
        return InterfaceKind::Other;
    }
    let at = root.join(interface);
    let has = |name: &str| at.join(name).exists();
    let read = |name: &str| std::fs::read_to_string(at.join(name)).unwrap_or_default();
    if has("wireless") || has("phy80211") {
        return InterfaceKind::Wifi;
    }
    let uevent = read("uevent");
    match uevent.lines().find_map(|line| line.strip_prefix("DEVTYPE=")) {
        Some("wlan") => return InterfaceKind::Wifi,
        Some("wwan") => return InterfaceKind::Cellular,
        // Bridges, bonds, VLANs, tunnels.
        Some(_) => return InterfaceKind::Other,
        None => {}
    }
    let driver = std::fs::read_link(at.join("device/driver")).ok();
    let driver = driver.as_ref().and_then(|link| link.file_name()).and_then(|name| name.to_str());
    if driver.is_some_and(|driver| MODEMS.contains(&driver)) {
        return InterfaceKind::Cellular;
    }
    match read("type").trim() {
        // Containers' virtual cables have no device; TUN and TAP interfaces say what they are.
        ARPHRD_ETHER if !has("tun_flags") => InterfaceKind::Ethernet,
        ARPHRD_RAWIP => InterfaceKind::Cellular,
        _ => InterfaceKind::Other,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    struct Sysfs(std::path::PathBuf);

    impl Sysfs {
        fn new() -> Self {
            let at = std::env::temp_dir().join(format!("whimbrel-sysfs-{}", std::process::id()));
            std::fs::create_dir_all(&at).unwrap();
            Self(at)
        }

        fn write(&self, file: &str, text: &str) -> &Self {
            let file = self.0.join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
            self
        }
    }

    impl Drop for Sysfs {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn kinds_are_read_from_sysfs() {
        let sysfs = Sysfs::new();
        sysfs
            .write("wlan0/phy80211/name", "phy0")
            .write("wlan1/uevent", "DEVTYPE=wlan\nINTERFACE=wlan1\n")
            .write("wwan0/uevent", "INTERFACE=wwan0\nDEVTYPE=wwan\n")
            .write("eth0/type", "1\n")
            .write("eth0/uevent", "INTERFACE=eth0\n")
            .write("rmnet0/type", "519\n")
            .write("br0/uevent", "DEVTYPE=bridge\n")
            .write("br0/type", "1\n")
            .write("tap0/type", "1\n")
            .write("tap0/tun_flags", "0x5002\n")
            .write("lo/type", "772\n")
            .write("usb0/type", "1\n")
            .write("drivers/rndis_host/x", "");
        std::fs::create_dir_all(sysfs.0.join("usb0/device")).unwrap();
        std::os::unix::fs::symlink(sysfs.0.join("drivers/rndis_host"), sysfs.0.join("usb0/device/driver"))
            .unwrap();
        let cases = [
            ("wlan0", InterfaceKind::Wifi),
            ("wlan1", InterfaceKind::Wifi),
            ("wwan0", InterfaceKind::Cellular),
            ("usb0", InterfaceKind::Cellular),
            ("rmnet0", InterfaceKind::Cellular),
            ("eth0", InterfaceKind::Ethernet),
            ("br0", InterfaceKind::Other),
            ("tap0", InterfaceKind::Other),
            ("lo", InterfaceKind::Other),
            ("absent", InterfaceKind::Other),
            ("../etc", InterfaceKind::Other),
        ];
        for (name, kind) in cases {
            assert_eq!(detect_in(&sysfs.0, name), kind, "{name}");
        }
    }

    #[test]
    fn names_of_kinds_are_read_back() {
        for kind in InterfaceKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert!("lan".parse::<InterfaceKind>().is_err());
    }
}
