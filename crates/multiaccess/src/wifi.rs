//! What is known of Wi-Fi: asked of the kernel for as long as the manager runs, where there is any.

use crate::genl::{Family, Generic};
use crate::kernel::Kernel;
use crate::nl80211::{self, Channel, Station};
use crate::protocol::Wifi;
use crate::shared::Shared;
use netlink_sys::protocols::NETLINK_GENERIC;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// What is known of Wi-Fi, by the names of interfaces, where another than the kernel tells.
pub type Radios = tokio::sync::watch::Receiver<BTreeMap<String, Wifi>>;

/// How often it is asked: a channel is looked at for a while.
const AGAIN: Duration = Duration::from_secs(2);
/// Between attempts, if the kernel answers with an error.
const PAUSE: Duration = Duration::from_secs(60);
/// The most interfaces that are asked about.
const MOST: usize = 8;

/// Asks for as long as the manager runs. Where there is no Wi-Fi nothing is asked before interfaces change.
pub(crate) async fn run(shared: Arc<Shared>) {
    let mut is_told = false;
    loop {
        // Before it is asked: an interface may come while the kernel says that there is none.
        let seen = shared.paths();
        let pause = match watch(&shared).await {
            Ok(()) => None,
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                if !std::mem::replace(&mut is_told, true) {
                    tracing::info!(%error, "the kernel does not tell of Wi-Fi");
                }
                Some(PAUSE)
            }
        };
        shared.set_wifi(BTreeMap::new());
        match pause {
            // It may have been a mishap.
            Some(pause) => {
                let _ = tokio::time::timeout(pause, shared.others_than(&seen)).await;
            }
            None => shared.others_than(&seen).await,
        }
    }
}

/// Takes what another than the kernel tells, for as long as the manager runs. Once nobody tells any more,
/// nothing is known.
pub(crate) async fn take(shared: Arc<Shared>, mut radios: Radios) {
    let mut paths = shared.follow();
    let mut is_told = true;
    loop {
        let (there, known) = (Arc::clone(&paths.borrow_and_update()), radios.borrow_and_update().clone());
        let index = |name: &str| there.get(there.named(name)?).map(|path| path.index);
        let known = known.into_iter().filter_map(|(name, wifi)| Some((index(&name)?, wifi)));
        shared.set_wifi(known.take(MOST).filter(|_| is_told).collect());
        tokio::select! {
            told = radios.changed(), if is_told => is_told = told.is_ok(),
            // An interface may have another number now. The sender lives as long as this runs.
            _ = paths.changed() => {}
        }
    }
}

/// Asks again and again, until that fails or there is no such interface.
async fn watch(shared: &Shared) -> io::Result<()> {
    let mut kernel = Kernel::open(NETLINK_GENERIC)?;
    let family = Family::named(&mut kernel, nl80211::FAMILY).await?.number;
    let mut before = HashMap::new();
    loop {
        let mut interfaces = Vec::new();
        let note = |told: Generic| interfaces.extend(nl80211::interface(&told));
        kernel.dump(nl80211::interfaces(family), note).await?;
        interfaces.truncate(MOST);
        if interfaces.is_empty() {
            return Ok(());
        }
        let mut known = BTreeMap::new();
        for index in interfaces {
            let wifi = ask(&mut kernel, family, index, &mut before).await?;
            known.extend(wifi.map(|wifi| (index, wifi)));
        }
        shared.set_wifi(known);
        tokio::time::sleep(AGAIN).await;
    }
}

/// What is known of one interface. `None`: it has no link, or is an access point itself.
async fn ask(
    kernel: &mut Kernel,
    family: u16,
    index: u32,
    before: &mut HashMap<u32, Channel>,
) -> io::Result<Option<Wifi>> {
    let mut stations: Vec<Station> = Vec::new();
    kernel.dump(nl80211::stations(family, index), |told| stations.extend(nl80211::station(&told))).await?;
    let mut channel = None;
    // Some drivers know nothing of their channels.
    let looked =
        kernel.dump(nl80211::channels(family, index), |told| channel = nl80211::channel(&told).or(channel));
    match looked.await {
        Err(error) if error.raw_os_error().is_some() => {}
        looked => looked?,
    }
    let busy = channel.and_then(|now| now.busy_since(before.insert(index, now)?));
    let [Station { signal, down, up }] = stations[..] else { return Ok(None) };
    Ok(Some(Wifi { signal_dbm: signal, down, up, busy }))
}
