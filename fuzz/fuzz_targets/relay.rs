//! What strangers send to a relay, and what servers and relays say to each other.
#![no_main]

use std::net::SocketAddr;

use libfuzzer_sys::fuzz_target;
use whimbrel_base::routing;
use whimbrel_relay::spare::{self, Key, Offer};
use whimbrel_relay::{hello, udp, wire};

fuzz_target!(|bytes: &[u8]| {
    let _ = hello::read(bytes);
    let _ = (routing::routed(bytes), routing::source_id(bytes));
    let _ = (udp::wire::read_from_server(bytes), udp::wire::read_from_relay(&Key::new(&[1; 32]), bytes));
    if let Some(offer) = Offer::decode(bytes) {
        assert!(bytes.starts_with(b"WHR1"), "{offer:?}");
    }
    // What the relay says with a proof.
    if let Some((&[a, b, high, low, ref ip @ ..], packet)) = bytes.split_first_chunk::<20>() {
        let (key, flow) = (Key::new(&[1; 32]), u32::from_be_bytes([a, b, high, low]));
        let client = SocketAddr::from((*ip, u16::from_be_bytes([high, low])));
        let seen = SocketAddr::new(client.ip().to_canonical(), client.port());
        let datagram = [&udp::wire::first_header(&key, flow, client)[..], packet].concat();
        let first = udp::wire::FromRelay::First { flow, client: seen, packet };
        assert_eq!(udp::wire::read_from_relay(&key, &datagram), Some(first));
        let start = spare::encode_start(&key, flow.into(), client);
        let start: &[u8; spare::START] = start.as_slice().try_into().expect("its length");
        assert_eq!(spare::decode_start(&key, flow.into(), start), Some(seen));
    }
    // A long reason is cut off when it is written.
    if let Ok(Some(message)) = wire::Message::decode(bytes)
        && !matches!(message, wire::Message::Refused(_))
    {
        let encoded = message.encode();
        assert_eq!(wire::Message::decode(&encoded[2..]), Ok(Some(message)));
    }
    // Places behind relays, among addresses.
    let addresses: Vec<SocketAddr> = bytes
        .chunks_exact(18)
        .filter_map(|piece| {
            let ip: [u8; 16] = piece[..16].try_into().ok()?;
            Some((ip, u16::from_be_bytes([piece[16], piece[17]])).into())
        })
        .collect();
    for place in whimbrel_base::relayed::places(&addresses) {
        if let whimbrel_base::Place::Relayed(relayed) = place {
            assert_eq!(whimbrel_base::relayed::places(&relayed.pack()), [place]);
        }
    }
    for aliased in whimbrel_base::relayed::aliases(&addresses) {
        let mut list = aliased.place.pack();
        whimbrel_base::relayed::add_aliases(&mut list, &[aliased], 3);
        assert_eq!(whimbrel_base::relayed::aliases(&list), [aliased]);
    }
});
