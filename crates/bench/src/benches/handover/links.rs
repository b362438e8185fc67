//! The papers' links, and what happens to them.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};
use whimbrel_lab::{Queue, Rate, Wake};

use crate::contender::Contender;
use crate::lab::{Access, CARRIER, CONGESTION_CONTROL, Loss, TwoLinks};

pub(super) const WIFI: usize = 0;

/// Downstream; the DSL line behind it is slower upstream [mptcp-handover §4].
const WIFI_RATE: Rate = Rate::mbit(8);
const WIFI_UP: Rate = Rate::kbit(450);
const WIFI_RTT: Duration = Duration::from_millis(30);
const UMTS_RATE: Rate = Rate::mbit(2);
const UMTS_RTT: Duration = Duration::from_millis(100);
/// "Up to 2 seconds RTT when sending bursts of data."
const UMTS_QUEUE: Queue = Queue::Time(Duration::from_secs(2));
/// It takes two seconds to wake [mptcp-handover §4.2], and sleeps again after its tail of 8 s (see
/// [`energy`](crate::energy)).
const UMTS_SLEEP: Wake = Wake { after: Duration::from_secs(8), takes: Duration::from_secs(2) };

/// Wi-Fi behind a DSL line, and 3G, whose radio may be kept awake.
pub(super) fn wifi_and_3g(awake: bool) -> [Access; 2] {
    let mut wifi = Access::new("wlan0", WIFI_RATE, WIFI_RTT);
    wifi.spec = wifi.spec.forward(|shape| shape.capacity = whimbrel_lab::Capacity::Rate(WIFI_UP));
    let umts = Access::new("wwan0", UMTS_RATE, UMTS_RTT).queue(UMTS_QUEUE);
    [wifi, if awake { umts } else { umts.sleeping(UMTS_SLEEP) }]
}

pub(super) fn described(awake: bool) -> Value {
    json!({
        "congestion_control": CONGESTION_CONTROL,
        "carrier": CARRIER,
        "wifi": {"down_kbit": 8000, "up_kbit": 450, "rtt_ms": 30, "queue_ms": 100},
        "3g": {"kbit": 2000, "rtt_ms": 100, "queue_ms": 2000,
            "wakes_in_ms": if awake { 0 } else { 2000 }, "sleeps_after_ms": 8000},
    })
}

/// Wi-Fi is switched off, the host sees it, and so does who is told. Returns the moment.
pub(super) fn lose_wifi(net: &TwoLinks, contender: Contender) -> Result<Instant> {
    let lost = net.lose(WIFI, Loss::Down)?;
    contender.tell_loss(net, WIFI)?;
    Ok(lost)
}
