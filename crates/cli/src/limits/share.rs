//! How connections share a rate: each gets what it uses, and those that want more share the rest equally.

use whimbrel_base::order;
use whimbrel_transport::RateLimit;

/// The share that a connection had, and what it used of it, in bytes a second; `None`: it had none yet.
pub(super) type Use = Option<(u64, u64)>;

/// Of what it had, a connection that used this part wants more.
const WANTS_MORE: (u64, u64) = (7, 8);

/// The shares of `total`. They add up to no more than that, as long as the least limit of each allows it.
pub(super) fn shares(total: u64, uses: &[Use]) -> Vec<u64> {
    let Some(equal) = total.checked_div(uses.len() as u64) else {
        return Vec::new();
    };
    let least = RateLimit::LEAST.bytes_per_second();
    let wish = |of: &Use| match *of {
        Some((share, used)) if used < share / WANTS_MORE.1 * WANTS_MORE.0 => {
            // Enough to show that it wants more, when it does.
            (used.saturating_mul(2)).max(equal / 8).max(least)
        }
        _ => u64::MAX,
    };
    let wishes: Vec<u64> = uses.iter().map(wish).collect();
    let mut order: Vec<usize> = (0..wishes.len()).collect();
    order::by_key(&mut order, |at| wishes[*at]);
    let mut shares = vec![0; wishes.len()];
    let (mut left, mut many) = (total, wishes.len() as u64);
    for at in order {
        let share = wishes[at].min(left / many);
        shares[at] = share;
        left -= share;
        many -= 1;
    }
    // What nobody asks for is there for those that begin.
    let rest = left / shares.len() as u64;
    shares.iter().map(|share| (share + rest).max(least)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOTAL: u64 = 8_000_000;

    #[test]
    fn one_connection_has_everything() {
        assert_eq!(shares(TOTAL, &[None]), [TOTAL]);
        assert_eq!(shares(TOTAL, &[Some((TOTAL, 0))]), [TOTAL]);
        assert!(shares(TOTAL, &[]).is_empty());
    }

    #[test]
    fn those_that_want_more_share_what_others_leave() {
        let busy = Some((TOTAL / 4, TOTAL / 4));
        let idle = Some((TOTAL / 4, 0));
        let shares = shares(TOTAL, &[busy, busy, idle, idle]);
        assert_eq!(shares, [TOTAL * 15 / 32, TOTAL * 15 / 32, TOTAL / 32, TOTAL / 32]);
        assert!(shares.iter().sum::<u64>() <= TOTAL);
    }

    #[test]
    fn an_idle_one_that_begins_has_its_part_after_two_looks() {
        let mut now = [TOTAL, 0];
        let mut has = [Some((TOTAL, TOTAL)), None];
        for _ in 0..2 {
            let given = shares(TOTAL, &has);
            now = [given[0], given[1]];
            has = [Some((now[0], now[0])), Some((now[1], now[1]))];
        }
        assert_eq!(now, [TOTAL / 2; 2]);
    }

    #[test]
    fn no_share_is_less_than_a_limit_can_be() {
        let least = RateLimit::LEAST.bytes_per_second();
        assert_eq!(shares(least, &[None; 3]), [least; 3]);
    }
}
