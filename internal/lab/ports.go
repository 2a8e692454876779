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

// Ports are TCP ports of the loopback that are reserved for this process, whether or not it
// listens on them: no other process of the lab gets one of them before Release, so that a
// restarted server can use the same port. They are below the kernel's ephemeral ports, so that
// other programs do not get one by chance either.
type Ports struct {
	numbers []int

	mu    sync.Mutex
	locks []int // file descriptors, one per port; nil after Release
}

// The range to search: above the ports of common services, below the kernel's ephemeral ports
// (/proc/sys/net/ipv4/ip_local_port_range).
const lowestPort, endOfPorts = 12000, 32000

// ReservePorts finds n free ports and reserves them for this process, until Release or until
// the process ends.
func ReservePorts(n int) (*Ports, error) {
	return reservePorts(n, lowestPort, endOfPorts)
}

// reservePorts searches from lowest to end-1, starting at a random port.
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

// lockPort locks a port until the descriptor is closed. The error is EADDRINUSE if this or
// another process has locked it, or if something listens on it. The lock is an abstract Unix
// socket, which belongs to the same network namespace as the port, leaves no file, and ends
// with its process.
func lockPort(port int) (int, error) {
	// A child between fork and exec would keep the listener open for longer.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	err = os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("@weir-port-%d", port)}))
	if err == nil {
		// The lock comes first, so that others who reserve ports never see the port in use
		// because of this listener.
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

// Addrs are the addresses, for net.Listen and net.Dial.
func (p *Ports) Addrs() []string {
	var all []string
	for _, port := range p.numbers {
		all = append(all, loopback(port))
	}
	return all
}

// Release releases the ports. A second call does nothing, nor does one on nil.
func (p *Ports) Release() error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	syscall.ForkLock.RLock() // otherwise a child between fork and exec still has them
	defer syscall.ForkLock.RUnlock()
	var errs []error
	for _, fd := range p.locks {
		errs = append(errs, os.NewSyscallError("close", unix.Close(fd)))
	}
	p.locks = nil
	return errors.Join(errs...)
}
