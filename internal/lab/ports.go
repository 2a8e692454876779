package lab

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Ports are TCP ports of the loopback that belong to this process, whether it
// listens on them or not: no other process of the lab is given one of them
// before Release, so that a server that is down finds its port again. They are
// below those that the kernel gives to connections and to listeners that want
// any port, so that strangers do not get one by chance either.
type Ports struct {
	numbers []int

	mu    sync.Mutex
	locks []int // file descriptors, one for each port; nil after Release
}

// Where ports are looked for: above what services are commonly found on, below
// the kernel's own choice (/proc/sys/net/ipv4/ip_local_port_range).
const lowestPort, endOfPorts = 12000, 32000

// ReservePorts finds n free ports and keeps them for this process. They are free again after Release, and when the process ends.
func ReservePorts(n int) (*Ports, error) {
	return reservePorts(n, lowestPort, endOfPorts)
}

// reservePorts looks for ports from lowest to end-1, from a random one on.
func reservePorts(n, lowest, end int) (*Ports, error) {
	p := &Ports{}
	count := end - lowest
	first := rand.IntN(count)
	for i := 0; i < count && len(p.numbers) < n; i++ {
		port := lowest + (first+i)%count
		lock, err := lockPort(port)
		if errors.Is(err, unix.EADDRINUSE) {
			continue
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("reserve port %d: %w", port, err), p.Release())
		}
		p.numbers, p.locks = append(p.numbers, port), append(p.locks, lock)
	}
	if len(p.numbers) < n {
		return nil, errors.Join(fmt.Errorf("reserve %d ports: fewer are free from %d to %d", n, lowest, end-1), p.Release())
	}
	return p, nil
}

// lockPort takes the name of a port, for as long as the descriptor is open; the
// error is EADDRINUSE while another process has it, or this one, or somebody
// listens on the port. The name is that of an abstract Unix socket, which lives in
// the same network namespace as the port, leaves no file, and ends with its process.
func lockPort(port int) (int, error) {
	// A child between its fork and its program would have the listener for longer.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	err = os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("@weir-port-%d", port)}))
	if err == nil {
		// With the name: nobody who also reserves finds the port taken because of this.
		var l net.Listener
		if l, err = net.Listen("tcp", loopback(port)); err == nil {
			err = l.Close()
		}
	}
	if err != nil {
		return 0, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// Addrs are their addresses, for net.Listen and net.Dial.
func (p *Ports) Addrs() []string {
	var all []string
	for _, port := range p.numbers {
		all = append(all, loopback(port))
	}
	return all
}

// Release gives the ports up. A second call does nothing, nor does one on nil.
func (p *Ports) Release() error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	syscall.ForkLock.RLock() // or a child that is just started has them still
	defer syscall.ForkLock.RUnlock()
	var errs []error
	for _, fd := range p.locks {
		errs = append(errs, os.NewSyscallError("close", unix.Close(fd)))
	}
	p.locks = nil
	return errors.Join(errs...)
}
