//! Wi-Fi as the kernel tells of it: the messages of nl80211 (`linux/nl80211.h`) that ask for interfaces, for
//! the access point of one and for its channel, and what they say.

use crate::genl::Generic;
use crate::netlink::{attribute, number_u32, put};

/// The family's name.
pub(crate) const FAMILY: &str = "nl80211";

/// Commands: a question, and what its answers have.
const GET_INTERFACE: u8 = 5;
const NEW_INTERFACE: u8 = 7;
const GET_STATION: u8 = 17;
const NEW_STATION: u8 = 19;
const GET_SURVEY: u8 = 50;
const NEW_SURVEY: u8 = 51;
/// Attributes of a message.
const INDEX: u16 = 3;
const STATION: u16 = 21;
const SURVEY: u16 = 84;
/// Of a station: strengths in dBm, of the last packet and on average, and the rates of both directions.
const SIGNAL: u16 = 7;
const SENT_RATE: u16 = 8;
const SIGNAL_AVERAGE: u16 = 13;
const RECEIVED_RATE: u16 = 14;
/// Of a rate, in units of 100 kbit/s: of 16 bits, and of 32 where these are not enough.
const RATE_16: u16 = 1;
const RATE_32: u16 = 5;
const UNIT: f64 = 100_000.0 / 8.0;
/// Of a channel: whether it is the one that is used, and how long it was looked at and was busy, in
/// milliseconds.
const IN_USE: u16 = 3;
const LOOKED: u16 = 4;
const BUSY: u16 = 5;

/// The other end of a link.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Station {
    /// How strong it is heard, in dBm.
    pub(crate) signal: Option<i8>,
    /// The rate at which packets come, in bytes per second.
    pub(crate) down: Option<f64>,
    /// The rate at which they are sent.
    pub(crate) up: Option<f64>,
}

/// How long a channel was looked at, and was busy: both count on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Channel {
    looked: u64,
    busy: u64,
}

impl Channel {
    /// The share of the time since then in which it was busy. `None`: it was not looked at, or both began
    /// anew.
    pub(crate) fn busy_since(self, before: Self) -> Option<f64> {
        let looked = self.looked.checked_sub(before.looked).filter(|time| *time > 0)?;
        let busy = self.busy.checked_sub(before.busy)?;
        Some((busy as f64 / looked as f64).min(1.0))
    }
}

/// Asks for all interfaces of Wi-Fi.
pub(crate) fn interfaces(family: u16) -> Generic {
    Generic { family, command: GET_INTERFACE, attributes: Vec::new() }
}

/// Asks for those that an interface has a link with.
pub(crate) fn stations(family: u16, index: u32) -> Generic {
    of_interface(family, GET_STATION, index)
}

/// Asks for the channels that an interface has looked at.
pub(crate) fn channels(family: u16, index: u32) -> Generic {
    of_interface(family, GET_SURVEY, index)
}

fn of_interface(family: u16, command: u8, index: u32) -> Generic {
    let mut attributes = Vec::new();
    put(&mut attributes, INDEX, &index.to_ne_bytes());
    Generic { family, command, attributes }
}

/// The number of an interface that is told of.
pub(crate) fn interface(told: &Generic) -> Option<u32> {
    (told.command == NEW_INTERFACE).then(|| number_u32(&told.attributes, INDEX))?
}

/// What is told of the other end of a link.
pub(crate) fn station(told: &Generic) -> Option<Station> {
    let station = attribute(&told.attributes, STATION).filter(|_| told.command == NEW_STATION)?;
    let signal = |kind| attribute(station, kind)?.first().map(|byte| i8::from_ne_bytes([*byte]));
    Some(Station {
        signal: signal(SIGNAL_AVERAGE).or_else(|| signal(SIGNAL)),
        down: attribute(station, RECEIVED_RATE).and_then(rate),
        up: attribute(station, SENT_RATE).and_then(rate),
    })
}

/// What is told of a channel, if it is the one that is used.
pub(crate) fn channel(told: &Generic) -> Option<Channel> {
    let survey = attribute(&told.attributes, SURVEY).filter(|_| told.command == NEW_SURVEY)?;
    attribute(survey, IN_USE)?;
    let time = |kind| Some(u64::from_ne_bytes(attribute(survey, kind)?.try_into().ok()?));
    Some(Channel { looked: time(LOOKED)?, busy: time(BUSY)? })
}

/// In bytes per second.
fn rate(told: &[u8]) -> Option<f64> {
    let short = || Some(u32::from(u16::from_ne_bytes(attribute(told, RATE_16)?.try_into().ok()?)));
    let units = number_u32(told, RATE_32).or_else(short)?;
    Some(f64::from(units) * UNIT)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::netlink::put_nested;
    use netlink_packet_core::NetlinkSerializable as _;

    fn told(command: u8, attributes: Vec<u8>) -> Generic {
        Generic { family: 33, command, attributes }
    }

    #[test]
    fn an_interface_is_asked_about_by_its_number() {
        let asked = stations(33, 5);
        let mut bytes = vec![0xff; asked.buffer_len()];
        asked.serialize(&mut bytes);
        // `genlmsghdr` with NL80211_CMD_GET_STATION, and NL80211_ATTR_IFINDEX.
        let mut expected = vec![17, 1, 0, 0];
        expected.extend_from_slice(&8u16.to_ne_bytes());
        expected.extend_from_slice(&3u16.to_ne_bytes());
        expected.extend_from_slice(&5u32.to_ne_bytes());
        assert_eq!((bytes, asked.message_type()), (expected, 33));
        assert_eq!((channels(33, 5).command, interfaces(33).attributes.len()), (50, 0));
    }

    /// As the kernel tells of an access point.
    fn access_point() -> Vec<u8> {
        let (mut sent, mut received, mut station, mut message) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        // 1.3 Gbit/s is said in 16 bits too; 6.9 in 32 alone.
        put(&mut sent, 5, &13_000u32.to_ne_bytes());
        put(&mut sent, 1, &13_000u16.to_ne_bytes());
        put(&mut received, 1, &1_444u16.to_ne_bytes());
        put(&mut station, 7, &[(-58i8).to_ne_bytes()[0]]);
        put(&mut station, 13, &[(-61i8).to_ne_bytes()[0]]);
        put_nested(&mut station, 8, &sent);
        put_nested(&mut station, 14, &received);
        put(&mut message, 3, &5u32.to_ne_bytes());
        put(&mut message, 6, &[2, 0, 0, 0, 0, 1]);
        put_nested(&mut message, 21, &station);
        message
    }

    #[test]
    fn the_signal_and_the_rates_of_an_access_point_are_read() {
        let read = station(&told(19, access_point())).unwrap();
        let (down, up) = (Some(144.4e6 / 8.0), Some(1.3e9 / 8.0));
        assert_eq!(read, Station { signal: Some(-61), down, up });
        assert_eq!(station(&told(7, access_point())), None, "it is told of an interface");
        assert_eq!(interface(&told(7, access_point())), Some(5));
        // Without an average the last packet's counts.
        let (mut inner, mut message) = (Vec::new(), Vec::new());
        put(&mut inner, 7, &[(-58i8).to_ne_bytes()[0]]);
        put_nested(&mut message, 21, &inner);
        let read = station(&told(19, message)).unwrap();
        assert_eq!(read, Station { signal: Some(-58), down: None, up: None });
    }

    fn survey(in_use: bool, looked: u64, busy: u64) -> Vec<u8> {
        let (mut inner, mut message) = (Vec::new(), Vec::new());
        put(&mut inner, 1, &5_180u32.to_ne_bytes());
        if in_use {
            put(&mut inner, 3, &[]);
        }
        put(&mut inner, 4, &looked.to_ne_bytes());
        put(&mut inner, 5, &busy.to_ne_bytes());
        put_nested(&mut message, 84, &inner);
        message
    }

    #[test]
    fn a_channel_is_busy_for_a_share_of_the_time_in_which_it_was_looked_at() {
        let read = |in_use, looked, busy| channel(&told(51, survey(in_use, looked, busy)));
        assert_eq!(read(false, 1000, 100), None, "it is another channel");
        let (before, now) = (read(true, 1000, 100).unwrap(), read(true, 3000, 600).unwrap());
        assert_eq!(now.busy_since(before), Some(0.25));
        assert_eq!((now.busy_since(now), before.busy_since(now)), (None, None));
        // A driver whose clocks are not the same.
        assert_eq!(read(true, 1100, 300).unwrap().busy_since(before), Some(1.0));
    }

    #[test]
    fn what_is_cut_says_less_and_harms_nobody() {
        for (command, whole) in [(19, access_point()), (51, survey(true, 5, 6)), (7, access_point())] {
            for length in 0..whole.len() {
                let cut = told(command, whole[..length].to_vec());
                let _ = (interface(&cut), station(&cut), channel(&cut));
            }
        }
        let noise = told(19, vec![0xff; 64]);
        assert_eq!((interface(&noise), station(&noise), channel(&noise)), (None, None, None));
    }
}
