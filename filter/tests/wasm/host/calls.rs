use std::rc::Rc;

use wasmtime::{Caller, Linker};

use super::state::{Owner, Status, Timer};
use super::streams::Reply;
use super::vm::{Context, Face};
use super::{Intruded, Line, Process};

type Vm<'a> = Caller<'a, Rc<Face>>;
type Answer = Result<(), Status>;

/// Gauges are told from counters by their number, as in Envoy.
const GAUGE: u32 = 1;

/// Offers the calls that the module may make.
pub(crate) fn offer(linker: &mut Linker<Rc<Face>>) -> wasmtime::Result<()> {
    linker.func_wrap("env", "proxy_log", |mut vm: Vm<'_>, level: u32, text: u32, size: u32| {
        answer(&mut vm, "proxy_log", |vm, process| {
            let text = String::from_utf8_lossy(&read(vm, text, size)?).into_owned();
            let line = Line { level, text };
            process.0.state.borrow_mut().lines.push(line);
            Ok(())
        })
    })?;
    linker.func_wrap("env", "proxy_set_tick_period_milliseconds", |mut vm: Vm<'_>, period: u32| {
        answer(&mut vm, "proxy_set_tick_period_milliseconds", |vm, process| set_tick(vm, process, period))
    })?;
    linker.func_wrap("env", "proxy_set_effective_context", |mut vm: Vm<'_>, context: u32| {
        answer(&mut vm, "proxy_set_effective_context", |vm, _| {
            if !vm.data().contexts.borrow().contains_key(&context) {
                return Err(Status::BAD_ARGUMENT);
            }
            vm.data().effective.set(context);
            Ok(())
        })
    })?;
    linker.func_wrap(
        "wasi_snapshot_preview1",
        "clock_time_get",
        |mut vm: Vm<'_>, clock: u32, _precision: u64, to: u32| {
            answer(&mut vm, "clock_time_get", |vm, process| {
                let nanos = if clock == 1 { process.0.now_nanos.get() } else { process.0.wall_nanos.get() };
                write(vm, to, &nanos.to_le_bytes())
            })
        },
    )?;
    linker.func_wrap("wasi_snapshot_preview1", "environ_sizes_get", |mut vm: Vm<'_>, count: u32, size: u32| {
        answer(&mut vm, "environ_sizes_get", |vm, _| {
            write(vm, count, &[0; 4])?;
            write(vm, size, &[0; 4])
        })
    })?;
    linker.func_wrap("wasi_snapshot_preview1", "environ_get", |_: Vm<'_>, _: u32, _: u32| 0_u32)?;
    shared_state(linker)?;
    metrics(linker)?;
    streams(linker)
}

fn shared_state(linker: &mut Linker<Rc<Face>>) -> wasmtime::Result<()> {
    linker.func_wrap(
        "env",
        "proxy_get_shared_data",
        |mut vm: Vm<'_>, key: u32, key_size: u32, to: u32, size_to: u32, cas_to: u32| {
            answer(&mut vm, "proxy_get_shared_data", |vm, process| {
                let key = read(vm, key, key_size)?;
                process.0.state.borrow_mut().trace("proxy_get_shared_data", &key);
                let (value, cas) = process.0.state.borrow().get(&key)?;
                give(vm, &value, to, size_to)?;
                write(vm, cas_to, &cas.to_le_bytes())
            })
        },
    )?;
    linker.func_wrap(
        "env",
        "proxy_set_shared_data",
        |mut vm: Vm<'_>, key: u32, key_size: u32, value: u32, size: u32, cas: u32| {
            answer(&mut vm, "proxy_set_shared_data", |vm, process| {
                let key = read(vm, key, key_size)?;
                let value = read(vm, value, size)?;
                process.0.state.borrow_mut().trace("proxy_set_shared_data", &key);
                process.0.state.borrow_mut().set(&key, &value, cas)?;
                process.written(&key, &value);
                Ok(())
            })
        },
    )?;
    linker.func_wrap("env", "proxy_register_shared_queue", |mut vm: Vm<'_>, name: u32, size: u32, to: u32| {
        answer(&mut vm, "proxy_register_shared_queue", |vm, process| {
            let name = read(vm, name, size)?;
            let context = spoken_for(vm)?.root;
            let owner = Owner { thread: vm.data().thread, key: vm.data().key, context };
            let token = process.0.state.borrow_mut().register(name, owner);
            write(vm, to, &token.to_le_bytes())
        })
    })?;
    linker.func_wrap(
        "env",
        "proxy_resolve_shared_queue",
        |mut vm: Vm<'_>, _vm_id: u32, _vm_id_size: u32, name: u32, size: u32, to: u32| {
            answer(&mut vm, "proxy_resolve_shared_queue", |vm, process| {
                let name = read(vm, name, size)?;
                let token = process.0.state.borrow().resolve(&name)?;
                write(vm, to, &token.to_le_bytes())
            })
        },
    )?;
    linker.func_wrap("env", "proxy_enqueue_shared_queue", |mut vm: Vm<'_>, token: u32, message: u32, size: u32| {
        answer(&mut vm, "proxy_enqueue_shared_queue", |vm, process| {
            let message = read(vm, message, size)?;
            let owner = process.0.state.borrow_mut().enqueue(token, message)?;
            process.post(owner, token);
            Ok(())
        })
    })?;
    linker.func_wrap("env", "proxy_dequeue_shared_queue", |mut vm: Vm<'_>, token: u32, to: u32, size_to: u32| {
        answer(&mut vm, "proxy_dequeue_shared_queue", |vm, process| {
            let message = process.0.state.borrow_mut().dequeue(token)?;
            give(vm, &message, to, size_to)
        })
    })?;
    Ok(())
}

fn metrics(linker: &mut Linker<Rc<Face>>) -> wasmtime::Result<()> {
    linker.func_wrap("env", "proxy_define_metric", |mut vm: Vm<'_>, kind: u32, name: u32, size: u32, to: u32| {
        answer(&mut vm, "proxy_define_metric", |vm, process| {
            let name = String::from_utf8(read(vm, name, size)?).map_err(|_| Status::BAD_ARGUMENT)?;
            let dud = kind == GAUGE && (process.0.setup.null_gauge)(vm.data().thread, &name);
            let id = {
                let mut metrics = vm.data().metrics.borrow_mut();
                let id = u32::try_from(metrics.len()).unwrap() << 2 | kind;
                metrics.insert(id, (!dud).then_some(name));
                id
            };
            write(vm, to, &id.to_le_bytes())
        })
    })?;
    linker.func_wrap("env", "proxy_increment_metric", |mut vm: Vm<'_>, id: u32, offset: i64| {
        answer(&mut vm, "proxy_increment_metric", |vm, process| {
            let name = metric(vm, id)?;
            if id & 3 != GAUGE && offset <= 0 {
                return Err(Status::BAD_ARGUMENT);
            }
            let mut state = process.0.state.borrow_mut();
            let name = name.as_deref();
            state.trace("proxy_increment_metric", format!("{}{offset:+}", name.unwrap_or("null")).as_bytes());
            if let Some(name) = name {
                state.add(name, offset);
            }
            Ok(())
        })
    })?;
    linker.func_wrap("env", "proxy_record_metric", |mut vm: Vm<'_>, id: u32, value: u64| {
        answer(&mut vm, "proxy_record_metric", |vm, process| {
            if let Some(name) = metric(vm, id)? {
                process.0.state.borrow_mut().record(&name, value);
            }
            Ok(())
        })
    })?;
    linker.func_wrap("env", "proxy_get_metric", |mut vm: Vm<'_>, id: u32, to: u32| {
        answer(&mut vm, "proxy_get_metric", |vm, process| {
            let value = metric(vm, id)?.map_or(0, |name| process.metric(&name));
            write(vm, to, &value.to_le_bytes())
        })
    })?;
    Ok(())
}

fn streams(linker: &mut Linker<Rc<Face>>) -> wasmtime::Result<()> {
    linker.func_wrap(
        "env",
        "proxy_get_buffer_bytes",
        |mut vm: Vm<'_>, kind: u32, start: u32, most: u32, to: u32, size_to: u32| {
            answer(&mut vm, "proxy_get_buffer_bytes", |vm, process| {
                const VM_CONFIGURATION: u32 = 6;
                const PLUGIN_CONFIGURATION: u32 = 7;
                let role = vm.data().role;
                let bytes = match kind {
                    VM_CONFIGURATION => role.vm_configuration(),
                    PLUGIN_CONFIGURATION => process.plugins(role)[spoken_for(vm)?.plugin],
                    _ => return Err(Status::NOT_FOUND),
                };
                // Envoy refuses a range that wraps in 64 bits; in 32 it may.
                let bytes = bytes.iter().copied().skip(start as usize).take(most as usize).collect::<Vec<u8>>();
                give(vm, &bytes, to, size_to)
            })
        },
    )?;
    linker.func_wrap(
        "env",
        "proxy_get_header_map_value",
        |mut vm: Vm<'_>, map: u32, name: u32, name_size: u32, to: u32, size_to: u32| {
            answer(&mut vm, "proxy_get_header_map_value", |vm, process| {
                const REQUEST_HEADERS: u32 = 0;
                let name = read(vm, name, name_size)?;
                process.0.state.borrow_mut().trace("proxy_get_header_map_value", &name);
                let stream = spoken_for(vm)?.stream.map(|id| process.stream(id));
                let stream = stream.filter(|stream| map == REQUEST_HEADERS && stream.readable);
                let headers = stream.ok_or(Status::BAD_ARGUMENT)?.request.headers;
                let (_, value) =
                    headers.into_iter().find(|(known, _)| known.as_bytes() == name).ok_or(Status::NOT_FOUND)?;
                give(vm, &value, to, size_to)
            })
        },
    )?;
    linker.func_wrap("env", "proxy_get_property", |mut vm: Vm<'_>, path: u32, size: u32, to: u32, size_to: u32| {
        answer(&mut vm, "proxy_get_property", |vm, process| {
            let path = read(vm, path, size)?;
            let context = spoken_for(vm)?;
            if path == b"plugin_name" {
                let plugin = if process.0.setup.namesakes { 0 } else { context.plugin };
                let name = format!("{:?} {plugin}", vm.data().role);
                return give(vm, name.as_bytes(), to, size_to);
            }
            let stream = context.stream.map(|id| process.stream(id)).ok_or(Status::NOT_FOUND)?;
            let value = match path.as_slice() {
                b"xds\0filter_chain_name" => stream.listener.filter_chain().as_bytes(),
                b"response\0code_details" => stream.details.as_bytes(),
                b"source\0address" => stream.request.peer.as_slice(),
                _ => return Err(Status::NOT_FOUND),
            };
            give(vm, value, to, size_to)
        })
    })?;
    linker.func_wrap(
        "env",
        "proxy_send_local_response",
        |mut vm: Vm<'_>,
         status: u32,
         _details: u32,
         _details_size: u32,
         body: u32,
         body_size: u32,
         headers: u32,
         headers_size: u32,
         _grpc: i32| {
            answer(&mut vm, "proxy_send_local_response", |vm, _| {
                let body = String::from_utf8_lossy(&read(vm, body, body_size)?).into_owned();
                let headers = pairs(&read(vm, headers, headers_size)?);
                // A root context has no stream to answer; the host takes the call and does nothing.
                if let Some(id) = spoken_for(vm)?.stream {
                    vm.data().replies.borrow_mut().push((id, Reply { status, headers, body }));
                }
                vm.data().stopped.set(true);
                Ok(())
            })
        },
    )?;
    Ok(())
}

/// Carries out one call: planned faults and other workers come first.
fn answer(vm: &mut Vm<'_>, call: &'static str, carry_out: impl FnOnce(&mut Vm<'_>, &Process) -> Answer) -> u32 {
    let process = vm.data().process();
    if let Some(planned) = process.0.state.borrow_mut().count(call) {
        return planned.0;
    }
    process.before_hostcall(Intruded { thread: vm.data().thread, role: vm.data().role, call });
    match carry_out(vm, &process) {
        Ok(()) => 0,
        Err(status) => status.0,
    }
}

fn set_tick(vm: &Vm<'_>, process: &Process, period: u32) -> Answer {
    let key = (vm.data().number, spoken_for(vm)?.root);
    let mut timers = process.0.timers.borrow_mut();
    if period == 0 {
        timers.remove(&key);
    } else {
        let period_nanos = u64::from(period) * 1_000_000;
        let due_nanos = process.0.now_nanos.get() + period_nanos;
        timers.insert(key, Timer { thread: vm.data().thread, period_nanos, due_nanos });
    }
    Ok(())
}

fn metric(vm: &Vm<'_>, id: u32) -> Result<Option<String>, Status> {
    vm.data().metrics.borrow().get(&id).cloned().ok_or(Status::NOT_FOUND)
}

fn spoken_for(vm: &Vm<'_>) -> Result<Context, Status> {
    vm.data().spoken_for().ok_or(Status::BAD_ARGUMENT)
}

fn read(vm: &Vm<'_>, at: u32, size: u32) -> Result<Vec<u8>, Status> {
    let memory = vm.data().memory.get().unwrap();
    let mut bytes = vec![0; size as usize];
    memory.read(vm, at as usize, &mut bytes).map_err(|_| Status::INVALID_MEMORY_ACCESS)?;
    Ok(bytes)
}

fn write(vm: &mut Vm<'_>, at: u32, bytes: &[u8]) -> Answer {
    let memory = vm.data().memory.get().unwrap();
    memory.write(vm, at as usize, bytes).map_err(|_| Status::INVALID_MEMORY_ACCESS)
}

/// Hands bytes over in memory that the VM allocates; nothing is allocated for nothing.
fn give(vm: &mut Vm<'_>, bytes: &[u8], to: u32, size_to: u32) -> Answer {
    let size = u32::try_from(bytes.len()).unwrap();
    let mut at = 0;
    if size > 0 {
        let allocate = vm.data().allocate.borrow().clone().unwrap();
        at = allocate.call(&mut *vm, size).map_err(|_| Status::INVALID_MEMORY_ACCESS)?;
        write(vm, at, bytes)?;
    }
    write(vm, to, &at.to_le_bytes())?;
    write(vm, size_to, &size.to_le_bytes())
}

/// A serialized header map: a count, the sizes of all names and values, then each of them with a NUL behind it.
fn pairs(bytes: &[u8]) -> Vec<(String, String)> {
    let word = |at: usize| u32::from_le_bytes(bytes[at * 4..at * 4 + 4].try_into().unwrap()) as usize;
    let count = word(0);
    let mut at = 4 + count * 8;
    let mut text = |size: usize| {
        let text = String::from_utf8_lossy(&bytes[at..at + size]).into_owned();
        at += size + 1;
        text
    };
    (0..count).map(|pair| (text(word(1 + pair * 2)), text(word(2 + pair * 2)))).collect()
}
