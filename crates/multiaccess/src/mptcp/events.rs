//! What the kernel tells of connections of Multipath TCP (enum mptcp_event_type of `linux/mptcp_pm.h`).

use crate::genl::Generic;
use crate::netlink::number_u32;

/// MPTCP_ATTR_TOKEN: which connection it is about.
const TOKEN: u16 = 1;

/// What happened to a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum What {
    Created,
    Established,
    Closed,
    /// The peer has told of an address.
    Announced,
    /// The peer has taken an address back.
    Removed,
    SubflowEstablished,
    SubflowClosed,
    /// A subflow has become a backup, or is none any more.
    SubflowPriority,
}

/// An event of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) what: What,
    pub(crate) token: u32,
}

/// Reads an event. `None` if it is of another kind, such as of a listener, or has no token.
pub(crate) fn event(message: &Generic) -> Option<Event> {
    let what = match message.command {
        1 => What::Created,
        2 => What::Established,
        3 => What::Closed,
        6 => What::Announced,
        7 => What::Removed,
        10 => What::SubflowEstablished,
        11 => What::SubflowClosed,
        13 => What::SubflowPriority,
        _ => return None,
    };
    Some(Event { what, token: number_u32(&message.attributes, TOKEN)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::put;
    use proptest::prelude::*;

    fn told(command: u8) -> Generic {
        let mut attributes = Vec::new();
        put(&mut attributes, 2, &2u16.to_ne_bytes());
        put(&mut attributes, TOKEN, &0xdead_beef_u32.to_ne_bytes());
        put(&mut attributes, 5, &[10, 0, 1, 1]);
        Generic { family: 28, command, attributes }
    }

    #[test]
    fn events_of_connections_are_read_and_others_left() {
        let expected = |what| Some(Event { what, token: 0xdead_beef });
        for (command, what) in [
            (1, What::Created),
            (2, What::Established),
            (3, What::Closed),
            (6, What::Announced),
            (7, What::Removed),
            (10, What::SubflowEstablished),
            (11, What::SubflowClosed),
            (13, What::SubflowPriority),
        ] {
            assert_eq!(event(&told(command)), expected(what));
        }
        for command in [0, 4, 5, 8, 9, 12, 14, 15, 16, 17, 255] {
            assert_eq!(event(&told(command)), None);
        }
    }

    #[test]
    fn an_event_that_is_cut_has_no_token_or_the_right_one() {
        let whole = told(10);
        for length in 0..whole.attributes.len() {
            let cut = Generic { attributes: whole.attributes[..length].to_vec(), ..whole.clone() };
            assert!(event(&cut).is_none_or(|event| event.token == 0xdead_beef), "{length} bytes");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_of_an_event_do_harm(
            command in any::<u8>(),
            attributes in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let _ = event(&Generic { family: 28, command, attributes });
        }
    }
}
