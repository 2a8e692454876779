package netloop

import (
	"net"
	"os"
	"path/filepath"
	"testing"
)

// TestPausable checks that a paused listener accepts no client, and loses none.
func TestPausable(t *testing.T) {
	for network, address := range map[string]string{"tcp": "127.0.0.1:0", "unix": filepath.Join(t.TempDir(), "socket")} {
		inner, err := net.Listen(network, address)
		if err != nil {
			t.Fatal(err)
		}
		ln := NewPausable(inner)
		accepted := make(chan error)
		go func() {
			for {
				conn, err := ln.Accept()
				if err == nil {
					_ = conn.Close()
				}
				accepted <- err
				if err != nil {
					return
				}
			}
		}()
		dial := func() {
			t.Helper()
			conn, err := net.Dial(network, ln.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close() })
		}
		dial()
		if err := <-accepted; err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second time it is paused already
			if err := ln.Pause(); err != nil {
				t.Fatal(err)
			}
		}
		dial()
		fd, err := ln.Descriptor()
		if err != nil {
			t.Fatal(err)
		}
		other, err := ListenerOf(fd, "other") // as another process that has it
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan error)
		go func() {
			conn, err := other.Accept()
			if err == nil {
				_ = conn.Close()
			}
			got <- err
		}()
		select {
		case err = <-got:
		case err = <-accepted: // a call that was under way when it was paused has had this one
			if err != nil {
				t.Fatal(err)
			}
			dial()
			err = <-got
		}
		if err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-accepted:
			t.Errorf("%s: accepted while paused: %v", network, err)
		default:
		}
		ln.KeepsPath(true)
		dial()
		if err := ln.Resume(); err != nil {
			t.Fatal(err)
		}
		if err := <-accepted; err != nil {
			t.Fatal(err)
		}
		if ln.Paused() {
			t.Errorf("%s: paused after Resume", network)
		}
		if err := ln.Pause(); err != nil {
			t.Fatal(err)
		}
		if err := ln.Close(); err != nil {
			t.Error(err)
		}
		if err := <-accepted; err == nil {
			t.Errorf("%s: a closed listener accepts", network)
		}
		if network == "unix" {
			if _, err := os.Stat(address); err != nil {
				t.Errorf("the path is gone, which the other process listens at: %v", err)
			}
		}
		_ = other.Close()
	}
}
