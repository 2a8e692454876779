package lab

import (
	"encoding/binary"
	"errors"
	"io"
	"maps"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// readers are what reads the first words of each broker.
var readers = map[string]func(io.Reader) error{
	"nats":     func(r io.Reader) error { return readNATS(r, "us") },
	"redis":    readRedis,
	"rabbitmq": readAMQP,
	"kafka":    readKafka,
}

// greetings are first words, and whether they mean that the broker is ready.
var greetings = []struct {
	broker string
	words  string
	ready  bool
}{
	{"nats", `INFO {"server_name":"us","jetstream":true} ` + "\r\n", true},
	{"nats", `INFO {"server_name":"us"} ` + "\r\n", false},
	{"nats", `INFO {"server_name":"them","jetstream":true} ` + "\r\n", false},
	{"nats", `INFO {"server_name":"us","jetstream":true} `, false},
	{"nats", "INFO what\r\n", false},
	{"nats", "+OK\r\n", false},
	{"redis", "+PONG\r\n", true},
	{"redis", "-NOAUTH Authentication required.\r\n", true},
	{"redis", "-LOADING Redis is loading the dataset in memory\r\n", false},
	{"redis", "+PONG", false},
	{"rabbitmq", "\x01\x00\x00\x00\x00\x01\xf4\x00\x0a\x00\x0a", true},
	{"rabbitmq", "\x01\x00\x00\x00\x00\x01\xf4\x00\x0a\x00\x0b", false},
	{"rabbitmq", "AMQP\x00\x00\x09\x01\x00\x0a\x00\x0a", false},
	{"rabbitmq", "AMQP\x00\x00\x09\x01", false},
	{"kafka", "\x00\x00\x01\x00\x00\x00\x00\x07\x00\x00", true},
	{"kafka", "\x00\x00\x01\x00\x00\x00\x00\x08\x00\x00", false},
	{"kafka", "\x00\x00\x01\x00\x00\x00\x00\x07\x00\x23", false},
	{"kafka", "\x00\x00\x01\x00", false},
}

func TestBrokersFirstWords(t *testing.T) {
	for _, g := range greetings {
		if err := readers[g.broker](strings.NewReader(g.words)); (err == nil) != g.ready {
			t.Errorf("%s says %q: %v, want ready %v", g.broker, g.words, err, g.ready)
		}
	}
}

// FuzzBrokersFirstWords looks for words that mean that two brokers are ready:
// each would be content with the other's.
func FuzzBrokersFirstWords(f *testing.F) {
	for _, g := range greetings {
		f.Add(g.words)
	}
	f.Fuzz(func(t *testing.T, words string) {
		var content []string
		for name, read := range readers {
			if read(strings.NewReader(words)) == nil {
				content = append(content, name)
			}
		}
		if len(content) > 1 {
			t.Errorf("%v are ready by %q", content, words)
		}
	})
}

func TestListeners(t *testing.T) {
	const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 111 1 0000000000000000 100 0 0 10 0
   2: 00000000:F1F9 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 333 1 0000000000000000 100 0 0 10 0
   3: short
   1: 0100007F:1F90 0100007F:C000 01 00000000:00000000 00:00000000 00000000     0        0 222 1 0000000000000000 20 4 30 10 -1
`
	found := make(map[string]bool)
	listeners(strings.NewReader(table), 0x1F90, found)
	if len(found) != 1 || !found["socket:[111]"] {
		t.Errorf("found %v, want the one that listens", found)
	}
}

// The kernel's answer about listening sockets is that of its table.
func TestAskListeners(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	// A connection of the same port does not listen.
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	asked := make(map[string]bool)
	err = askListeners(unix.AF_INET, port, asked)
	if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.ENOENT) {
		t.Skipf("this kernel has no sock_diag for TCP: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	table, err := os.Open("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	read := make(map[string]bool)
	listeners(table, port, read)
	if len(asked) != 1 || !maps.Equal(asked, read) {
		t.Errorf("asked: %v, read: %v; want one and the same", asked, read)
	}
	six := make(map[string]bool)
	if err := askListeners(unix.AF_INET6, port, six); err != nil || len(six) != 0 {
		t.Errorf("of IPv6: %v, %v; want none", six, err)
	}
}

// TestAnsweredListeners reads what this kernel answers, and what one without tcp_diag does.
func TestAnsweredListeners(t *testing.T) {
	message := func(kind uint16, body ...byte) []byte {
		b := binary.NativeEndian.AppendUint32(nil, uint32(netlinkHead+len(body)))
		b = binary.NativeEndian.AppendUint16(b, kind)
		b = append(append(b, make([]byte, netlinkHead-len(b))...), body...)
		return append(b, make([]byte, -len(b)&3)...)
	}
	code := func(errno unix.Errno) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(-int32(errno))) }
	socket := func(port uint16, inode uint32) []byte {
		body := make([]byte, diagInode+4)
		binary.BigEndian.PutUint16(body[4:], port)
		binary.NativeEndian.PutUint32(body[diagInode:], inode)
		return message(unix.SOCK_DIAG_BY_FAMILY, body...)
	}
	done := message(unix.NLMSG_DONE, code(0)...)
	for _, c := range []struct {
		what  string
		parts [][]byte
		found []string
		done  bool
		err   string
	}{
		{"nobody listens", [][]byte{done}, nil, true, ""},
		{"two of three do", [][]byte{socket(80, 1), socket(81, 2), socket(80, 3), done}, []string{"socket:[1]", "socket:[3]"}, true, ""},
		{"there is more", [][]byte{socket(80, 1)}, []string{"socket:[1]"}, false, ""},
		{"no handler for the family", [][]byte{message(unix.NLMSG_ERROR, code(unix.ENOENT)...)}, nil, false, "no such file"},
		{"no tcp_diag", [][]byte{message(unix.NLMSG_DONE, code(unix.ENOENT)...)}, nil, false, "no such file"},
		{"an end without its code", [][]byte{message(unix.NLMSG_DONE)}, nil, false, "too short"},
		{"a socket without its inode", [][]byte{message(unix.SOCK_DIAG_BY_FAMILY, 1, 2, 3, 4)}, nil, false, "too short"},
		{"half of a socket", [][]byte{socket(80, 1)[:40]}, nil, false, "cut off"},
	} {
		found := make(map[string]bool)
		end, err := answeredListeners(slices.Concat(c.parts...), 80, found)
		if got := slices.Sorted(maps.Keys(found)); end != c.done || !slices.Equal(got, c.found) {
			t.Errorf("%s: found %v, the end: %v", c.what, got, end)
		}
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: error %v, want %q", c.what, err, c.err)
		}
	}
}

// TestListensOn checks that the port must belong to the process, not to another one.
func TestListensOn(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	self, err := readStat(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	other, err := startProcess(command{path: "/bin/sleep", args: []string{"600"}, dir: "/"})
	if err != nil {
		t.Fatal(err)
	}
	defer other.killTree()
	if p := (&process{id: self.id}); !p.listensOn(port) {
		t.Error("does not find its own socket")
	}
	if other.listensOn(port) {
		t.Error("another process is said to listen on the port of this one")
	}
	free, err := ReservePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	defer free.Release()
	if p := (&process{id: self.id}); p.listensOn(free.numbers[0]) {
		t.Error("says that it listens on a free port")
	}
}

func TestReaches(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to have files of others")
	}
	u, err := user.Lookup("nobody")
	if err != nil {
		t.Skip(err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	nobody := &identity{name: "nobody", uid: uint32(uid), gid: uint32(uid)}
	dir := isolate(t) // 0700
	file, link := filepath.Join(dir, "file"), filepath.Join("/tmp", "link-"+filepath.Base(dir))
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(link)
	steps := []struct {
		what  string
		mode  os.FileMode // of the directory
		file  os.FileMode
		reach bool
	}{
		{"closed directory", 0o700, 0o644, false},
		{"passable directory", 0o711, 0o644, true},
		{"closed file", 0o711, 0o600, false},
	}
	for _, s := range steps {
		if err := os.Chmod(dir, s.mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, s.file); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{file, link} {
			if got := nobody.reaches(path); got != s.reach {
				t.Errorf("%s, %s: reaches %v, want %v", s.what, path, got, s.reach)
			}
		}
		if !(*identity)(nil).reaches(file) {
			t.Error("this process does not reach its own file")
		}
	}
}

func TestFindBrokers(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	p := brokerProgram{title: "X", env: "WEIR_TEST_X", name: "x-server", dirs: []string{dir + "/first"}, late: []string{dir + "/late"}, hint: "install x"}
	if _, err := p.find(""); !NotInstalled(err) || !strings.Contains(err.Error(), "$WEIR_TEST_X, "+dir+"/first, the PATH, "+dir+"/late") {
		t.Errorf("error %v, want to hear where it looked", err)
	}
	for _, sub := range []string{"late", "", "first"} { // each before the one before
		path := filepath.Join(dir, sub, "x-server")
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("#!/bin/sh\necho x-server: v1.2.34\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		if got, err := p.find(""); got != path || err != nil {
			t.Errorf("found %s, %v; want %s", got, err, path)
		}
	}
	if v, err := p.ask(t.Context(), filepath.Join(dir, "x-server")); v != "1.2.34" || err != nil {
		t.Errorf("version %q, %v", v, err)
	}
	t.Setenv("WEIR_TEST_X", dir+"/nowhere")
	if _, err := p.find(""); err == nil || NotInstalled(err) {
		t.Errorf("a wrong variable: %v, want an error of its own", err)
	}
}

func TestFindKafkaSays(t *testing.T) {
	t.Setenv(EnvKafka, t.TempDir())
	if _, _, err := FindKafka(t.Context(), ""); err == nil || NotInstalled(err) {
		t.Errorf("a wrong $%s: %v, want an error of its own", EnvKafka, err)
	}
	t.Setenv(EnvKafka, "")
	t.Chdir("/")
	if _, _, err := FindKafka(t.Context(), ""); !NotInstalled(err) || !strings.Contains(err.Error(), "make kafka") {
		t.Errorf("outside a checkout: %v, want a hint", err)
	}
}
