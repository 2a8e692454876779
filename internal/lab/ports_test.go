package lab

import (
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// envReserve makes the test below the helper process that it starts.
const envReserve = "WEIR_TEST_RESERVE"

// A port that one process has reserved is no other's, until the process ends.
func TestPortsOfAnotherProcess(t *testing.T) {
	if os.Getenv(envReserve) != "" {
		p, err := ReservePorts(2)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = os.Stdout.WriteString(strings.Join(p.Addrs(), " "))
		_ = os.Stdout.Close()
		_, _ = io.ReadAll(os.Stdin)
		return
	}
	// Another process may take the port while it is free.
	sooner(t, func() bool {
		cmd := exec.Command(os.Args[0], "-test.run=^TestPortsOfAnotherProcess$")
		cmd.Env = append(os.Environ(), envReserve+"=1")
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		said, err := io.ReadAll(out)
		theirs := strings.Fields(string(said))
		if err != nil || len(theirs) != 2 {
			t.Fatalf("the other process reserved %q, %v", said, err)
		}
		for _, addr := range theirs {
			port := portOf(t, addr)
			if p, err := reservePorts(1, port, port+1); err == nil {
				t.Errorf("reserved %v, which another process has", p.Addrs())
			}
		}
		if err := in.Close(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // it has closed what a test prints its verdict to
		port := portOf(t, theirs[0])
		p, err := reservePorts(1, port, port+1)
		return err == nil && p.Release() == nil
	})
}

// sooner or later something must work that others may prevent now and then.
func sooner(t *testing.T, works func() bool) {
	t.Helper()
	for range 20 {
		if works() {
			return
		}
	}
	t.Error("it does not work")
}

func portOf(t *testing.T, addr string) int {
	t.Helper()
	a, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	return a.Port
}

func TestReleasedPorts(t *testing.T) {
	sooner(t, func() bool {
		p, err := ReservePorts(1)
		if err != nil {
			t.Fatal(err)
		}
		port := p.Numbers()[0]
		if again, err := reservePorts(1, port, port+1); err == nil {
			t.Errorf("reserved %v twice", again.Addrs())
		}
		for range 2 {
			if err := p.Release(); err != nil {
				t.Error(err)
			}
		}
		p, err = reservePorts(1, port, port+1)
		return err == nil && p.Release() == nil
	})
}

func TestPortsNobodyListensOn(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := portOf(t, l.Addr().String())
	if p, err := reservePorts(1, port, port+1); err == nil {
		t.Errorf("reserved %v, which is listened on", p.Addrs())
	}
	if _, err := lockPort(port); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("a port that is listened on: %v", err)
	}
}

func TestPortsDiffer(t *testing.T) {
	all, err := ReservePorts(50)
	if err != nil {
		t.Fatal(err)
	}
	sorted := slices.Sorted(slices.Values(all.Numbers()))
	if len(slices.Compact(slices.Clone(sorted))) != 50 || sorted[0] < lowestPort || sorted[49] >= endOfPorts {
		t.Errorf("reserved %v", all.Numbers())
	}
	if err := all.Release(); err != nil {
		t.Error(err)
	}
}

// Numbers are the ports.
func (p *Ports) Numbers() []int { return p.numbers }
