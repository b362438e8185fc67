//! Whether the manager is to be asked again, given what it saw before and sees now: a pure function.

use whimbrel_multiaccess::protocol::PathReport;

/// Estimates that differ by less than this share say the same: they vary from one measurement to the next.
const SHARE: f64 = 0.25;
/// So do round trips that differ by less milliseconds.
const ROUND_TRIP: f64 = 5.0;
/// And losses that differ by less than one packet in a hundred.
const LOSS: f64 = 0.01;

/// What has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// Nothing that matters.
    Nothing,
    /// Estimates, much.
    Estimates,
    /// Which networks there are, their addresses, or what they cost.
    Networks,
}

/// Compares what the manager sees of the paths.
pub(crate) fn change(before: &[PathReport], now: &[PathReport]) -> Change {
    let is_same = |(before, now): (&PathReport, &PathReport)| {
        (&before.interface, &before.addresses, before.metered)
            == (&now.interface, &now.addresses, now.metered)
    };
    if before.len() != now.len() || !before.iter().zip(now).all(is_same) {
        return Change::Networks;
    }
    match before.iter().zip(now).any(|(before, now)| differs(before, now)) {
        true => Change::Estimates,
        false => Change::Nothing,
    }
}

fn differs(before: &PathReport, now: &PathReport) -> bool {
    by(before.srtt_min_ms, now.srtt_min_ms, SHARE, ROUND_TRIP)
        || by(before.down_best, now.down_best, SHARE, 0.0)
        || by(before.up_best, now.up_best, SHARE, 0.0)
        || by(before.loss, now.loss, 0.0, LOSS)
        || is_fading(before) != is_fading(now)
}

/// Whether it is Wi-Fi that is about to go.
fn is_fading(path: &PathReport) -> bool {
    path.wifi.is_some_and(|wifi| wifi.radio().is_fading())
}

/// Whether both the share of the larger one and the amount are exceeded, or only one of them is known.
fn by(before: Option<f64>, now: Option<f64>, share: f64, amount: f64) -> bool {
    match (before, now) {
        (Some(before), Some(now)) => {
            let differ = (before - now).abs();
            differ > amount && differ > before.max(now) * share
        }
        (None, None) => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_multiaccess::protocol::Wifi;

    fn path() -> PathReport {
        PathReport {
            interface: "wlan0".to_owned(),
            addresses: vec![[192, 0, 2, 1].into()],
            srtt_min_ms: Some(20.0),
            down_best: Some(1e6),
            loss: Some(0.0),
            connections: 3,
            ..PathReport::default()
        }
    }

    fn heard_at(signal: i8) -> Option<Wifi> {
        Some(Wifi { signal_dbm: Some(signal), ..Wifi::default() })
    }

    fn after(change_: impl FnOnce(&mut PathReport)) -> Change {
        let mut now = path();
        change_(&mut now);
        change(&[path()], &[now])
    }

    #[test]
    fn what_varies_from_one_measurement_to_the_next_is_no_change() {
        assert_eq!(after(|_| ()), Change::Nothing);
        assert_eq!(after(|path| path.srtt_min_ms = Some(24.9)), Change::Nothing);
        assert_eq!(after(|path| path.down_best = Some(1.2e6)), Change::Nothing);
        assert_eq!(after(|path| path.loss = Some(0.009)), Change::Nothing);
        let passing = |path: &mut PathReport| {
            (path.connections, path.scheduled) = (9, 4);
            (path.down_now, path.up_now) = (Some(5e5), Some(5e5));
        };
        assert_eq!(after(passing), Change::Nothing);
        assert_eq!(after(|path| path.wifi = heard_at(-80)), Change::Nothing);
    }

    #[test]
    fn estimates_that_differ_by_more_than_a_quarter_or_become_known_are_one() {
        assert_eq!(after(|path| path.srtt_min_ms = Some(30.0)), Change::Estimates);
        assert_eq!(after(|path| path.down_best = Some(5e5)), Change::Estimates);
        assert_eq!(after(|path| path.up_best = Some(1e6)), Change::Estimates);
        assert_eq!(after(|path| path.srtt_min_ms = None), Change::Estimates);
        assert_eq!(after(|path| path.loss = Some(0.02)), Change::Estimates);
        assert_eq!(after(|path| path.wifi = heard_at(-81)), Change::Estimates, "it is about to go");
    }

    #[test]
    fn networks_that_come_go_move_or_begin_to_cost_money_are_another() {
        assert_eq!(after(|path| path.metered = true), Change::Networks);
        assert_eq!(after(|path| path.addresses.clear()), Change::Networks);
        assert_eq!(after(|path| path.interface = "usb0".to_owned()), Change::Networks);
        assert_eq!(change(&[path()], &[]), Change::Networks);
        assert_eq!(change(&[], &[path()]), Change::Networks);
    }
}
