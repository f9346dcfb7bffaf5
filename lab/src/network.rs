//! The two grounds that programs stand on: this machine's loopback, for anybody, and network namespaces, for root. In a namespace
//! everything inside a pod keeps its addresses and ports, so that several pods are what they are in a cluster, and what goes
//! over the wire between them can be captured.

mod namespaces;

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::process::Command;

use self::namespaces::{Namespaces, pod_machine, subnet};
use crate::{http, topology, wait};

/// The most pods that a ground has: two replicas and their successors.
pub(crate) const PODS_MAX: u8 = 4;

/// Which ground.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// One machine, loopback addresses; needs no root
    Loopback,
    /// A network namespace for each machine, and a capture of what the balancer sends and gets; needs root
    Namespaces,
}

/// Where a program or a socket is: in a network namespace, or where the lab itself is.
///
/// A ground is laid once for the life of the process, so what holds its namespaces open is never closed.
#[derive(Clone, Copy, Default)]
pub(crate) struct Site(Option<&'static File>);

impl Site {
    /// Lets `command` run here.
    pub(crate) fn place(&self, command: &mut Command) {
        let Some(namespace) = self.0 else { return };
        // SAFETY: between fork and exec this makes one system call; it neither allocates nor takes a lock.
        unsafe { command.pre_exec(move || enter(namespace)) };
    }

    /// A socket that belongs here, whoever uses it.
    pub(crate) fn socket(&self) -> io::Result<TcpSocket> {
        let Some(namespace) = self.0 else { return TcpSocket::new_v4() };
        // A socket stays in the namespace of the thread that made it; this thread is made for it, and ends with it.
        let made = std::thread::spawn(move || {
            enter(namespace)?;
            let socket = rustix::net::socket_with(
                rustix::net::AddressFamily::INET,
                rustix::net::SocketType::STREAM,
                rustix::net::SocketFlags::NONBLOCK | rustix::net::SocketFlags::CLOEXEC,
                None,
            )?;
            io::Result::Ok(socket)
        });
        let socket = made.join().map_err(|_| io::Error::other("the thread that makes a socket died"))??;
        Ok(TcpSocket::from_std_stream(std::net::TcpStream::from(socket)))
    }

    /// Connects from here.
    pub(crate) async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        http::connect(self.socket()?, to).await
    }

    /// Listens here.
    pub(crate) fn listen(&self, at: SocketAddr) -> io::Result<TcpListener> {
        let socket = self.socket()?;
        socket.set_reuseaddr(true)?;
        socket.bind(at)?;
        socket.listen(1024)
    }
}

fn enter(namespace: &File) -> io::Result<()> {
    Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
}

/// A machine of the story.
#[derive(Clone, Copy)]
pub(crate) struct Host {
    pub(crate) site: Site,
    pub(crate) address: IpAddr,
}

impl Host {
    pub(crate) fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.address, port)
    }
}

/// The place of one gateway pod. It is the balancer's server of the same name.
#[derive(Clone)]
pub(crate) struct Pod {
    pub(crate) name: String,
    pub(crate) site: Site,
    /// Where its own programs find each other: admin, control, agent.
    pub(crate) inside: IpAddr,
    /// Where others find it: traffic, health, status.
    pub(crate) outside: IpAddr,
    /// Where its control listener is instead, if it is not at a port.
    pub(crate) socket: Option<PathBuf>,
    /// Whether other pods are on the same machine, so that none may listen on all of its addresses.
    pub(crate) shares_machine: bool,
}

impl Pod {
    /// The only pod of a ground on loopback.
    pub(crate) fn only() -> Self {
        Network::Loopback.pod(0)
    }

    pub(crate) fn admin(&self) -> SocketAddr {
        SocketAddr::new(self.inside, topology::ADMIN)
    }

    pub(crate) fn control(&self) -> SocketAddr {
        SocketAddr::new(self.inside, topology::CONTROL)
    }

    pub(crate) fn agent(&self) -> SocketAddr {
        SocketAddr::new(self.inside, topology::AGENT)
    }

    pub(crate) fn health(&self) -> SocketAddr {
        SocketAddr::new(self.outside, topology::HEALTH)
    }

    pub(crate) fn status(&self) -> SocketAddr {
        SocketAddr::new(self.outside, topology::STATUS)
    }

    pub(crate) fn traffic(&self) -> SocketAddr {
        SocketAddr::new(self.outside, topology::TRAFFIC)
    }

    /// The lab's reader of the pod's admin, which listens on the pod's loopback alone.
    pub(crate) fn admin_probe(&self) -> Host {
        Host { site: self.site, address: topology::ADMIN_PROBE }
    }

    /// The lab as the pod's operator.
    pub(crate) fn operator(&self) -> Host {
        Host { site: self.site, address: topology::OPERATOR }
    }
}

/// The ground itself; namespaces are gone when it is dropped.
pub(crate) enum Network {
    Loopback,
    Namespaces(Namespaces),
}

impl Network {
    pub(crate) fn lay(kind: Kind) -> Result<Self> {
        match kind {
            Kind::Loopback => Ok(Self::Loopback),
            Kind::Namespaces => Ok(Self::Namespaces(Namespaces::lay()?)),
        }
    }

    /// Whether nobody else is on it: ports on loopback may be taken, those of a namespace are the lab's alone.
    pub(crate) async fn is_free(&self) -> Result<()> {
        match self {
            Self::Loopback => topology::ports_are_free().await,
            // The run before may still be ending.
            Self::Namespaces(_) => {
                let pods = (0..PODS_MAX).map(|number| self.pod(number));
                let places: Vec<(Site, SocketAddr)> = pods
                    .flat_map(|pod| [pod.health(), pod.traffic(), pod.admin(), pod.agent()].map(|at| (pod.site, at)))
                    .chain([(self.application().site, self.application().at(topology::APP))])
                    .collect();
                let free = async || places.iter().all(|(site, at)| site.listen(*at).is_ok()).then_some(());
                wait::until("the ports of the run before are free", Duration::from_secs(5), free).await
            }
        }
    }

    /// The pod of that number, from 0.
    pub(crate) fn pod(&self, number: u8) -> Pod {
        let name = if number == 0 { "gw".to_owned() } else { format!("gw{}", number + 1) };
        match self {
            Self::Loopback => {
                // The first pod's address is that of the shipped configuration.
                let address = loopback(if number == 0 { 1 } else { 20 + number });
                Pod {
                    name,
                    site: Site::default(),
                    inside: address,
                    outside: address,
                    socket: None,
                    shares_machine: false,
                }
            }
            Self::Namespaces(namespaces) => {
                let host = namespaces.host(&pod_machine(number));
                Pod {
                    name,
                    site: host.site,
                    inside: loopback(1),
                    outside: host.address,
                    socket: None,
                    shares_machine: false,
                }
            }
        }
    }

    /// So many pods beside each other.
    pub(crate) fn pods(&self, count: u8) -> Vec<Pod> {
        let shares_machine = count > 1 && matches!(self, Self::Loopback);
        (0..count).map(|number| Pod { shares_machine, ..self.pod(number) }).collect()
    }

    /// The balancer, with the address that its checks and its traffic come from.
    pub(crate) fn balancer(&self) -> Host {
        self.machine("lb", topology::LB_SOURCE)
    }

    /// Where the balancer listens.
    pub(crate) fn front(&self) -> IpAddr {
        match self {
            Self::Loopback => loopback(1),
            Self::Namespaces(_) => self.balancer().address,
        }
    }

    /// The application behind the gateway.
    pub(crate) fn application(&self) -> Host {
        self.machine("app", loopback(1))
    }

    /// The clients in front of the balancer.
    pub(crate) fn clients(&self) -> Host {
        self.machine("client", loopback(1))
    }

    /// One of the lab's probes, known by its loopback address; each keeps a source address of its own.
    pub(crate) fn probe(&self, loopback: IpAddr) -> Host {
        match self {
            Self::Loopback => Host { site: Site::default(), address: loopback },
            Self::Namespaces(namespaces) => {
                let IpAddr::V4(address) = loopback else { return namespaces.host("lab") };
                Host { address: subnet(address.octets()[3]), ..namespaces.host("lab") }
            }
        }
    }

    /// Where a capture sees all that the balancer sends and gets, and on which interface; none on loopback, which anybody may
    /// use, and a capture needs root.
    pub(crate) fn watchpoint(&self) -> Option<(Site, &'static str)> {
        match self {
            Self::Loopback => None,
            Self::Namespaces(_) => Some((self.balancer().site, "eth0")),
        }
    }

    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Loopback => Kind::Loopback,
            Self::Namespaces(_) => Kind::Namespaces,
        }
    }

    fn machine(&self, name: &str, on_loopback: IpAddr) -> Host {
        match self {
            Self::Loopback => Host { site: Site::default(), address: on_loopback },
            Self::Namespaces(namespaces) => namespaces.host(name),
        }
    }
}

const fn loopback(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(127, 0, 0, last))
}

#[cfg(test)]
mod tests {
    use super::namespaces::{MACHINES, PROBES};
    use super::*;

    #[test]
    fn pods_on_loopback_have_addresses_of_their_own_and_the_first_has_that_of_the_shipped_configuration() {
        let pods: Vec<Pod> = (0..PODS_MAX).map(|number| Network::Loopback.pod(number)).collect();
        assert_eq!(pods[0].control(), topology::local(topology::CONTROL));
        for (number, pod) in pods.iter().enumerate() {
            assert!(pods[..number].iter().all(|other| other.outside != pod.outside && other.name != pod.name));
        }
    }

    #[test]
    fn no_machine_has_the_address_of_another_or_of_a_probe() {
        let mut taken: Vec<u8> = MACHINES.iter().map(|(_, last)| *last).chain((0..PODS_MAX).map(|n| 21 + n)).collect();
        for probe in PROBES.into_iter().chain([topology::OPERATOR]) {
            let IpAddr::V4(probe) = probe else { continue };
            taken.push(probe.octets()[3]);
        }
        let count = taken.len();
        taken.sort_unstable();
        taken.dedup();
        assert_eq!(taken.len(), count);
    }
}
