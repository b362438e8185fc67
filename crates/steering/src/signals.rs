//! What the endpoint is told of Wi-Fi: pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use whimbrel_multiaccess::protocol::PathReport;

/// How strong the signal is that each local address has its network by, in dBm, where the manager knows it.
pub(crate) fn signals(paths: &[PathReport]) -> BTreeMap<IpAddr, i8> {
    let known = paths.iter().filter_map(|path| Some((path, path.wifi?.signal_dbm?)));
    let each = known.flat_map(|(path, dbm)| path.addresses.iter().map(move |ip| (ip.to_canonical(), dbm)));
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_multiaccess::protocol::Wifi;

    #[test]
    fn each_address_of_wifi_has_its_signal_and_others_have_none() {
        let path = |last: u8, wifi| PathReport {
            addresses: vec![[192, 0, 2, last].into(), [192, 0, 2, last + 100].into()],
            wifi,
            ..PathReport::default()
        };
        let heard = Wifi { signal_dbm: Some(-71), ..Wifi::default() };
        let known = signals(&[path(1, Some(heard)), path(2, None), path(3, Some(Wifi::default()))]);
        let expected = [1, 101].map(|last| (IpAddr::from([192, 0, 2, last]), -71));
        assert_eq!(known, BTreeMap::from(expected));
    }
}
