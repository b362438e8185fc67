//! How many messages go in a second, and how long one takes there and one back.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::{End, Measure, Places};

/// Bytes of a message.
pub(crate) const SIZE: usize = 100;
/// Round trips, and messages, before the measured ones.
pub(super) const WARM_UP: usize = 2000;
/// How often the receiver of a flood looks at the clock.
const LOOK_EVERY: u64 = 64;

/// Messages a second that arrive while one side sends as many as it can.
pub(super) struct Rate(pub(super) Duration);

impl Measure for Rate {
    type Found = f64;

    async fn of<E: End>(self, _: Places, (mut from, mut to): (E, E)) -> Result<f64> {
        let Self(length) = self;
        let receiver = tokio::spawn(async move {
            for _ in 0..WARM_UP {
                to.receive().await?;
            }
            let (began, mut count) = (Instant::now(), 0_u64);
            loop {
                to.receive().await?;
                count += 1;
                if count % LOOK_EVERY == 0 && began.elapsed() >= length {
                    return Ok(count as f64 / began.elapsed().as_secs_f64());
                }
            }
        });
        let sender = tokio::spawn(async move { while from.send(&[7; SIZE]).await.is_ok() {} });
        let rate = receiver.await?;
        sender.abort();
        rate
    }
}

/// Times of one message there and one back, in microseconds.
pub(super) struct RoundTrips(pub(super) Duration);

impl Measure for RoundTrips {
    type Found = Vec<f64>;

    async fn of<E: End>(self, _: Places, (mut from, mut to): (E, E)) -> Result<Vec<f64>> {
        let echo = tokio::spawn(async move {
            while let Ok(letter) = to.receive().await {
                if to.send(&[7; SIZE][..letter.size]).await.is_err() || to.flush().await.is_err() {
                    return;
                }
            }
        });
        let mut times = Vec::new();
        let mut began = None;
        for number in 0.. {
            let sent = Instant::now();
            from.send(&[7; SIZE]).await?;
            from.flush().await?;
            from.receive().await?;
            if number >= WARM_UP {
                let began = *began.get_or_insert(sent);
                times.push(sent.elapsed().as_nanos() as f64 / 1000.0);
                if sent - began >= self.0 {
                    break;
                }
            }
        }
        echo.abort();
        Ok(times)
    }
}
