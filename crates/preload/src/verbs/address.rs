//! Address handles, and what leads from a received datagram or a GID to an address.

use std::ffi::{c_char, c_int};
use std::sync::Arc;

use scalefabric_ibv::abi;
use scalefabric_verbs::{AddressHandle, Errno, Gid, Qpn, VerbsError, WcFlags, WorkCompletion};

use super::answer::{Outcome, or_minus, or_negative, pointer, stale, status};
use super::attribute::{address_vector, ah_attr};
use super::behind::behind;
use super::context;
use super::memory::pd_of;
use super::object::{Object, Part, is_ours, next_handle, of};

/// An address handle.
pub struct AhPart {
    /// The contract's.
    pub ah: Arc<dyn AddressHandle>,
}

impl Part for AhPart {
    type C = abi::Ah;
    const MARK: u64 = u64::from_be_bytes(*b"sfAddrHd");
    const NAME: &'static str = "address handle";
}

/// `ibv_create_ah`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah(pd: *mut abi::Pd, attr: *mut abi::AhAttr) -> *mut abi::Ah {
    type Create = unsafe extern "C" fn(*mut abi::Pd, *mut abi::AhAttr) -> *mut abi::Ah;
    // SAFETY: a protection domain, or null.
    if !pd.is_null() && !unsafe { is_ours(pd) } {
        return behind!(ibv_create_ah as Create, (pd, attr), else std::ptr::null_mut());
    }
    pointer("ibv_create_ah", || {
        // SAFETY: the program's structure, or null; a live domain has a context.
        let (domain, attr) = unsafe { (pd_of(pd)?, attr.as_ref()) };
        let attr = attr.ok_or_else(|| VerbsError::invalid("ibv_ah_attr is null"))?;
        let ah = domain.create_ah(&address_vector("ibv_ah_attr", attr)?)?;
        // SAFETY: as above.
        let context = unsafe { (*pd).context };
        Ok(Object::make(abi::Ah { context, pd, handle: next_handle() }, AhPart { ah }))
    })
}

/// `ibv_destroy_ah`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_ah(ah: *mut abi::Ah) -> c_int {
    // SAFETY: an address handle, or null.
    if !ah.is_null() && !unsafe { is_ours(ah) } {
        return behind!(ibv_destroy_ah as unsafe extern "C" fn(*mut abi::Ah) -> c_int, (ah), else libc::EINVAL);
    }
    status("ibv_destroy_ah", || {
        // SAFETY: it is ours, or null.
        unsafe {
            of::<AhPart>(ah)?.part.ah.destroy()?;
            Object::<AhPart>::bury(ah);
        }
        Ok(())
    })
}

/// The address that answers a datagram.
unsafe fn answer(
    context: *mut abi::Context,
    port_num: u8,
    wc: *mut abi::Wc,
    grh: *mut [u8; 40],
) -> Outcome<abi::AhAttr> {
    // SAFETY: the context is ours; the program's structures, or null.
    let (open, wc, grh) = unsafe { (context::open(context)?, wc.as_ref(), grh.as_ref()) };
    let wc = wc.ok_or_else(|| VerbsError::invalid("ibv_wc is null"))?;
    let received = WorkCompletion {
        src_qp: Qpn::new(wc.src_qp),
        flags: WcFlags::from_bits_truncate(wc.wc_flags),
        sl: wc.sl,
        ..WorkCompletion::default()
    };
    if !received.flags.contains(WcFlags::GRH) {
        // As libibverbs: an attribute without GRH, which RoCE refuses when a handle is made of it.
        return Ok(abi::AhAttr { sl: wc.sl, port_num, ..abi::AhAttr::default() });
    }
    let grh = grh.ok_or_else(|| VerbsError::invalid("the GRH is null"))?;
    // The contract answers with a handle, which needs a protection domain; this one is gone at once.
    let pd = open.verbs()?.alloc_pd()?;
    let ah = pd.create_ah_from_wc(&received, grh, port_num);
    let av = ah.as_ref().map(|ah| ah.address_vector()).map_err(Clone::clone);
    drop(ah);
    let _ = pd.destroy();
    Ok(ah_attr(&av?))
}

/// `ibv_init_ah_from_wc`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut abi::Context,
    port_num: u8,
    wc: *mut abi::Wc,
    grh: *mut [u8; 40],
    attr: *mut abi::AhAttr,
) -> c_int {
    // SAFETY: a context, or null.
    if !context.is_null() && !unsafe { context::is_ours(context) } {
        type Init = unsafe extern "C" fn(*mut abi::Context, u8, *mut abi::Wc, *mut [u8; 40], *mut abi::AhAttr) -> c_int;
        return behind!(ibv_init_ah_from_wc as Init, (context, port_num, wc, grh, attr), else -1);
    }
    or_minus("ibv_init_ah_from_wc", || {
        if context.is_null() || attr.is_null() {
            return Err(stale("open device"));
        }
        // SAFETY: what the program passes.
        unsafe { *attr = answer(context, port_num, wc, grh)? };
        Ok(0)
    })
}

/// `ibv_create_ah_from_wc`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut abi::Pd,
    wc: *mut abi::Wc,
    grh: *mut [u8; 40],
    port_num: u8,
) -> *mut abi::Ah {
    // SAFETY: a protection domain, or null.
    if !pd.is_null() && !unsafe { is_ours(pd) } {
        type Create = unsafe extern "C" fn(*mut abi::Pd, *mut abi::Wc, *mut [u8; 40], u8) -> *mut abi::Ah;
        return behind!(ibv_create_ah_from_wc as Create, (pd, wc, grh, port_num), else std::ptr::null_mut());
    }
    let mut attr = std::ptr::null_mut::<abi::AhAttr>();
    let mut answered = abi::AhAttr::default();
    let outcome = status("ibv_create_ah_from_wc", || {
        // SAFETY: what the program passes; a live domain has a context.
        unsafe {
            pd_of(pd)?;
            answered = answer((*pd).context, port_num, wc, grh)?;
        }
        attr = &raw mut answered;
        Ok(())
    });
    if outcome != 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: passed on.
    unsafe { ibv_create_ah(pd, attr) }
}

/// `ibv_resolve_eth_l2_from_gid`: the MAC address and VLAN to which an address leads, or a negative number of errno.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_resolve_eth_l2_from_gid(
    context: *mut abi::Context,
    attr: *mut abi::AhAttr,
    mac: *mut [u8; 6],
    vlan: *mut u16,
) -> c_int {
    // SAFETY: a context, or null.
    if !context.is_null() && !unsafe { context::is_ours(context) } {
        type Resolve = unsafe extern "C" fn(*mut abi::Context, *mut abi::AhAttr, *mut [u8; 6], *mut u16) -> c_int;
        return behind!(ibv_resolve_eth_l2_from_gid as Resolve, (context, attr, mac, vlan), else -libc::EOPNOTSUPP);
    }
    let outcome = or_negative("ibv_resolve_eth_l2_from_gid", || {
        // SAFETY: the program's structures, or null.
        let (attr, mac) = unsafe { (attr.as_ref(), mac.as_mut()) };
        let (Some(attr), Some(mac), false) = (attr, mac, context.is_null()) else {
            return Err(VerbsError::invalid("context, attr or eth_mac is null"));
        };
        // SAFETY: it is ours.
        let open = unsafe { context::open(context)? };
        let table = open.verbs()?.query_gid_table()?;
        let index = u32::from(attr.grh.sgid_index);
        let source = table.iter().find(|e| e.port_num == attr.port_num && e.gid_index == index);
        let source = source.ok_or_else(|| VerbsError::invalid(format!("GID index {index} is empty")))?;
        *mac = neighbour(&source.ndev_name, Gid(attr.grh.dgid.0))?;
        // SAFETY: the program's word, or null. An interface of a VLAN tags by itself.
        if let Some(vlan) = unsafe { vlan.as_mut() } {
            *vlan = 0xffff;
        }
        Ok(0)
    });
    outcome as c_int
}

/// The MAC address of a neighbour on an interface: that of a group, our own, or what the kernel knows (it is asked by a
/// datagram to the discard port if it does not).
fn neighbour(interface: &str, gid: Gid) -> Outcome<[u8; 6]> {
    use std::net::{IpAddr, UdpSocket};
    let unreachable = |why: &str| VerbsError::environment(Errno::EHOSTUNREACH, format!("{gid} on {interface}: {why}"));
    let ip = gid.to_ip();
    match ip {
        IpAddr::V4(v4) if v4.is_multicast() => {
            let [_, b, c, d] = v4.octets();
            return Ok([1, 0, 0x5e, b & 0x7f, c, d]);
        }
        IpAddr::V6(v6) if v6.is_multicast() => {
            let tail = v6.octets();
            return Ok([0x33, 0x33, tail[12], tail[13], tail[14], tail[15]]);
        }
        _ => {}
    }
    let own = || -> Option<[u8; 6]> {
        let text = std::fs::read_to_string(format!("/sys/class/net/{interface}/address")).ok()?;
        parse_mac(text.trim())
    };
    // Only our own address can be bound to.
    if UdpSocket::bind((ip, 0)).is_ok() {
        return own().ok_or_else(|| unreachable("the interface has no MAC address"));
    }
    for attempt in 0..30 {
        if let Some(mac) = known(interface, ip) {
            return Ok(mac);
        }
        if attempt % 10 == 0 {
            let any: IpAddr = if ip.is_ipv4() {
                std::net::Ipv4Addr::UNSPECIFIED.into()
            } else {
                std::net::Ipv6Addr::UNSPECIFIED.into()
            };
            let socket = UdpSocket::bind((any, 0)).map_err(|e| unreachable(&e.to_string()))?;
            socket.send_to(&[], (ip, 9)).map_err(|e| unreachable(&e.to_string()))?;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    Err(unreachable("nobody answers"))
}

fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        *byte = u8::from_str_radix(parts.next()?, 16).ok()?;
    }
    parts.next().is_none().then_some(mac)
}

/// What the kernel's table of neighbours says (SIOCGARP for IPv4; for IPv6 there is no such call).
fn known(interface: &str, ip: std::net::IpAddr) -> Option<[u8; 6]> {
    let std::net::IpAddr::V4(v4) = ip else { return None };
    // SAFETY: the request is zero but for the address and the name, both in place.
    unsafe {
        let mut request: libc::arpreq = std::mem::zeroed();
        let address = (&raw mut request.arp_pa).cast::<libc::sockaddr_in>();
        (*address).sin_family = libc::AF_INET as u16;
        (*address).sin_addr.s_addr = u32::from(v4).to_be();
        request.arp_dev.iter_mut().zip(interface.bytes().take(15)).for_each(|(to, from)| *to = from as c_char);
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        if socket < 0 {
            return None;
        }
        let outcome = libc::ioctl(socket, libc::SIOCGARP as _, &raw mut request);
        libc::close(socket);
        let complete = request.arp_flags & libc::ATF_COM != 0;
        (outcome == 0 && complete).then(|| std::array::from_fn(|i| request.arp_ha.sa_data[i] as u8))
    }
}
