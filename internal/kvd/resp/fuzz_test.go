package resp_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/kvd/resp"
)

// FuzzConversation sends arbitrary bytes to a server, which must answer with complete replies
// only. The seeds are the commands of the scripts, as lines.
func FuzzConversation(f *testing.F) {
	paths, err := filepath.Glob("testdata/*/*.txt")
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range paths {
		script, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		var seed bytes.Buffer
		for line := range strings.Lines(string(script)) {
			if command, ok := strings.CutPrefix(line, "> "); ok && !strings.HasPrefix(command, "raw ") {
				seed.WriteString(command)
				if seed.Len() > 500 {
					f.Add(bytes.Clone(seed.Bytes()))
					seed.Reset()
				}
			}
		}
		f.Add(seed.Bytes())
	}
	f.Add([]byte("HELLO 3\nCLIENT TRACKING ON BCAST\nSET a 1\nWEIR.WATCH a\nSET a 2\nRESET\nGET a\n"))
	f.Add([]byte("*1\r\n$0\r\n\r\n*2\r\n$3\r\nGET\r\n$0\r\n\r\n*-1\r\n"))
	_, addr := serveFake(f, resp.Config{MaxInFlight: 8, MaxTracked: 2})
	f.Fuzz(func(t *testing.T, input []byte) {
		sock, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer sock.Close()
		if err := sock.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		go func() { // ends when all is written, or with the connection
			if _, err := sock.Write(input); err == nil {
				_ = sock.(*net.TCPConn).CloseWrite() // the server may have hung up already
			}
		}()
		in := bufio.NewReader(sock)
		for {
			var b bytes.Buffer
			switch err := readReply(in, &b); {
			case err == nil:
			case b.Len() == 0 && err == io.EOF:
				return
			case errors.Is(err, syscall.ECONNRESET):
				return // it hangs up on who breaks the protocol, which may cut off what was on its way
			default:
				t.Fatalf("%q is no reply: %v", b.Bytes(), err)
			}
		}
	})
}
