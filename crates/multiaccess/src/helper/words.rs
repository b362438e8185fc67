//! What is said on the helper's socket: one JSON object a line, in both directions (`docs/manager.md`).

use crate::mptcp::{Action, Ends, Subflow, What};
use serde::{Deserialize, Serialize};

/// The longest line of a client, its end included.
pub(crate) const MAX_LINE: usize = 4096;
/// And of the helper, which may list subflows.
pub(crate) const MAX_TOLD: usize = 16 << 10;

/// A line of a client: what is to be done with a connection of its. Without an action it is told which
/// subflows the connection has, and of what happens to it, as after each order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Order {
    /// Comes back with the answer.
    pub(crate) id: u64,
    /// The ends of its first subflow, also when that is closed.
    pub(crate) connection: Ends,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) action: Option<Action>,
}

/// A line of the helper.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Told {
    /// The number of the order, where there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<u64>,
    /// It is done.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) ok: bool,
    /// Why it is not. After an error of the form of a line the helper hangs up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// The subflows of the connection, if there was no action.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) subflows: Option<Vec<Subflow>>,
    /// Something happened to a connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) event: Option<Happened>,
    /// Events were lost: anything may have happened to all connections. Of those that are ordered about again
    /// is told what happens.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) lost: bool,
}

/// What happened to a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Happened {
    pub(crate) connection: Ends,
    pub(crate) what: What,
}

/// Reads a line of a client.
///
/// # Errors
/// Why it is no order, in words.
pub(crate) fn decode(line: &[u8]) -> Result<Order, String> {
    serde_json::from_slice(line).map_err(|error| format!("this line is no order: {error}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::{IpAddr, SocketAddr};

    const ENDS: &str = r#""connection":{"local":"10.0.1.1:4000","remote":"10.9.9.9:443"}"#;

    fn line(rest: &str) -> Vec<u8> {
        format!("{{\"id\":7,{ENDS}{rest}}}").into_bytes()
    }

    #[test]
    fn an_order_is_one_of_these_and_nothing_else() {
        let remote = SocketAddr::from(([10, 9, 9, 9], 443));
        let source = IpAddr::from([10, 0, 2, 1]);
        let create = Action::Create { source, interface: 3, number: 2, is_backup: true, remote };
        let text = concat!(
            r#","action":{"create":{"source":"10.0.2.1","interface":3,"number":2,"backup":true,"#,
            r#""remote":"10.9.9.9:443"}}"#
        );
        let order = decode(&line(text)).unwrap();
        assert_eq!((order.id, order.action, order.connection.remote), (7, Some(create), remote));
        assert_eq!(serde_json::to_vec(&order).unwrap(), line(text));
        assert_eq!(decode(&line("")).unwrap().action, None);
        assert_eq!(
            decode(&line(r#","action":{"remove":{"number":2}}"#)).unwrap().action,
            Some(Action::Remove { number: 2 })
        );
        for wrong in [
            r#","action":{"flush":{}}"#,
            r#","action":"remove""#,
            r#","action":{"remove":{"number":256}}"#,
            r#","action":{"remove":{"number":2,"all":true}}"#,
            r#","action":{"remove":{"number":2},"announce":{"address":"10.0.2.1","number":2}}"#,
            r#","action":{"create":{"source":"eth0","interface":3,"number":2,"remote":"10.9.9.9:443"}}"#,
            r#","token":5"#,
        ] {
            assert!(decode(&line(wrong)).is_err(), "{wrong}");
        }
        for wrong in [&b""[..], b"{}", b"[]", b"\xff", b"{\"id\":1}"] {
            assert!(decode(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_longest_list_of_subflows_fits_in_a_line_and_comes_back_without_tokens() {
        let end = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535".parse().unwrap();
        let ends = Ends { local: end, remote: end };
        let subflow = Subflow { ends, token: 7, is_established: false, is_backup: false };
        let told =
            Told { id: Some(u64::MAX), ok: true, subflows: Some(vec![subflow; 64]), ..Told::default() };
        let line = serde_json::to_vec(&told).unwrap();
        assert!(line.len() < MAX_TOLD, "{}", line.len());
        let read: Told = serde_json::from_slice(&line).unwrap();
        assert_eq!(read.subflows, Some(vec![Subflow { token: 0, ..subflow }; 64]));
    }

    proptest! {
        #[test]
        fn no_bytes_of_a_line_do_harm(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode(&bytes);
        }
    }
}
