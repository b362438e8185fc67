//! A phone with Wi-Fi and LTE, and a server behind a router. Wi-Fi dies; LTE goes on.

use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};
use whimbrel_lab::{Direction, Host, Lab, LinkSpec, Rate};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    whimbrel_lab::enter()?;
    let lab = Lab::new()?;
    let (phone, router, server) = (lab.host("phone")?, lab.router("router")?, lab.host("server")?);

    let spec = LinkSpec::default().delay(Duration::from_millis(10)).rate(Rate::mbit(30));
    let wifi = lab.link(&phone, &router, spec.interface_names("wifi0", "lan0"))?;
    wifi.end(&phone).add_address("10.0.1.2/24")?;
    wifi.end(&router).add_address("10.0.1.1/24")?;
    wifi.end(&phone).add_default_route("10.0.1.1", 100)?;

    let spec = LinkSpec::default().delay(Duration::from_millis(35)).rate(Rate::mbit(12));
    let lte = lab.link(&phone, &router, spec.interface_names("lte0", "lan1"))?;
    lte.end(&phone).add_address("10.0.2.2/24")?;
    lte.end(&router).add_address("10.0.2.1/24")?;
    lte.end(&phone).add_default_route("10.0.2.1", 200)?;

    let cable = lab.direct_link(&router, &server, LinkSpec::default().interface_names("wan", "eth0"))?;
    cable.end(&router).add_address("10.0.9.1/24")?;
    cable.end(&server).add_address("10.0.9.2/24")?;
    cable.end(&server).add_default_route("10.0.9.1", 100)?;

    let _listener = server.run(|| TcpListener::bind("10.0.9.2:443"))?;
    for (title, blackhole) in [("all is well", false), ("Wi-Fi is dead", true)] {
        wifi.set_blackhole(Direction::Both, blackhole);
        println!("{title}: wifi0 {:?}, lte0 {:?}", connect(&phone, "wifi0"), connect(&phone, "lte0"));
    }
    Ok(())
}

/// How long a connection through that interface takes to be set up.
fn connect(phone: &Host, interface: &str) -> std::io::Result<Duration> {
    phone.run(|| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind_device(Some(interface.as_bytes()))?;
        let began = Instant::now();
        let server = SocketAddr::from(([10, 0, 9, 2], 443));
        socket.connect_timeout(&server.into(), Duration::from_millis(500))?;
        Ok(began.elapsed())
    })
}
