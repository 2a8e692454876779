package resp_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"
)

// patience bounds what must happen; nothing depends on how long it takes.
const patience = 2 * time.Minute

// peer is a client that sees every byte.
type peer struct {
	tb   testing.TB
	sock net.Conn
	in   *bufio.Reader
}

func dial(tb testing.TB, addr string) *peer {
	tb.Helper()
	sock, err := net.Dial("tcp", addr)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { sock.Close() })
	p := &peer{tb, sock, bufio.NewReader(sock)}
	p.hope()
	return p
}

// hope extends the deadline for the next step: a test of many steps takes longer than one.
func (p *peer) hope() {
	p.tb.Helper()
	if err := p.sock.SetDeadline(time.Now().Add(patience)); err != nil {
		p.tb.Fatal(err)
	}
}

// frame is a command as client libraries send it.
func frame(args ...string) []byte {
	var b []byte
	b = fmt.Appendf(b, "*%d\r\n", len(args))
	for _, a := range args {
		b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(a), a)
	}
	return b
}

func (p *peer) send(raw []byte) {
	p.tb.Helper()
	p.hope()
	if _, err := p.sock.Write(raw); err != nil {
		p.tb.Fatal(err)
	}
}

// reply reads one reply or push, as it is.
func (p *peer) reply() string {
	p.tb.Helper()
	p.hope()
	var b bytes.Buffer
	if err := readReply(p.in, &b); err != nil {
		p.tb.Fatalf("after %q: %v", b.String(), err)
	}
	return b.String()
}

// do sends a command and reads its reply.
func (p *peer) do(args ...string) string {
	p.tb.Helper()
	p.send(frame(args...))
	return p.reply()
}

// want sends a command and compares its reply.
func (p *peer) want(reply string, args ...string) {
	p.tb.Helper()
	if got := p.do(args...); got != reply {
		p.tb.Fatalf("%q answers %q, not %q", args, got, reply)
	}
}

// rest reads until the server hangs up.
func (p *peer) rest() string {
	p.tb.Helper()
	b, err := io.ReadAll(p.in)
	if err != nil {
		p.tb.Fatal(err)
	}
	return string(b)
}

// resp3 changes the protocol.
func (p *peer) resp3() *peer {
	p.tb.Helper()
	if got := p.do("HELLO", "3"); !strings.HasPrefix(got, "%7\r\n") {
		p.tb.Fatalf("HELLO 3 answers %q", got)
	}
	return p
}

func readReply(in *bufio.Reader, b *bytes.Buffer) error {
	line, err := in.ReadString('\n')
	b.WriteString(line)
	if err != nil {
		return err
	}
	if len(line) < 3 || !strings.HasSuffix(line, "\r\n") {
		return fmt.Errorf("malformed line %q", line)
	}
	switch line[0] {
	case '+', '-', ':', '_', ',', '#', '(':
		return nil
	}
	n, err := strconv.Atoi(line[1 : len(line)-2])
	if err != nil {
		return err
	}
	switch line[0] {
	case '$', '=':
		if n < 0 {
			return nil
		}
		if _, err := io.CopyN(b, in, int64(n)+2); err != nil {
			return err
		}
		if !bytes.HasSuffix(b.Bytes(), []byte("\r\n")) {
			return fmt.Errorf("bulk of %d bytes does not end where it should", n)
		}
		return nil
	case '*', '~', '>', '%':
		if line[0] == '%' {
			n *= 2
		}
		for range n {
			if err := readReply(in, b); err != nil {
				return err
			}
		}
		return nil
	default:
		return fmt.Errorf("unknown kind of reply %q", line)
	}
}
