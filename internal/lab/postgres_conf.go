package lab

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Auth is a method of client authentication, by its name in pg_hba.conf.
type Auth string

// The supported methods.
const (
	Trust    Auth = "trust"
	Password Auth = "password" // in clear text
	MD5      Auth = "md5"
	SCRAM    Auth = "scram-sha-256"
)

// TLSMode says which connections over TCP a server accepts.
type TLSMode int

const (
	// TLSOffered: encrypted or not, by the client's choice. The server's own DSN does not use
	// TLS.
	TLSOffered TLSMode = iota
	// TLSOff: not encrypted.
	TLSOff
	// TLSOptional: encrypted or not, by the client's choice. The server's own DSN requires
	// verified TLS.
	TLSOptional
	// TLSRequired: only encrypted.
	TLSRequired
	// TLSMutual: encrypted, from clients whose certificate names their role.
	TLSMutual
)

// ParseTLSMode parses a mode's name: offered, off, optional, required or mutual.
func ParseTLSMode(s string) (TLSMode, error) {
	for mode, name := range []string{"offered", "off", "optional", "required", "mutual"} {
		if s == name {
			return TLSMode(mode), nil
		}
	}
	return 0, fmt.Errorf("TLS mode %q: must be offered, off, optional, required or mutual", s)
}

// inDSN reports whether a server's own DSN uses TLS.
func (m TLSMode) inDSN() bool { return m != TLSOffered && m != TLSOff }

// demanded reports whether the server refuses unencrypted connections.
func (m TLSMode) demanded() bool { return m == TLSRequired || m == TLSMutual }

func randomPassword() string { return rand.Text()[:16] }

var settingName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?$`)

// settings returns the server's configuration in the order in which it is written: a later line
// overrides an earlier one.
func (p *Postgres) settings() [][2]string {
	c := p.cfg
	s := [][2]string{
		{"listen_addresses", p.Host()},
		{"port", strconv.Itoa(p.port)},
		{"unix_socket_directories", p.sock},
		{"max_connections", strconv.Itoa(c.MaxConnections)},
		{"shared_buffers", c.SharedBuffers},
		{"shared_preload_libraries", strings.Join(c.Preload, ",")},
		{"log_line_prefix", "%m [%p] %q%u@%d "},
		{"log_checkpoints", "off"}, // the log is for problems
		// A time zone other than UTC, and off by half an hour, so that code which assumes UTC
		// is noticed.
		{"timezone", "Asia/Kolkata"},
		{"wal_level", "logical"},
		{"max_wal_senders", "20"},
		{"max_replication_slots", "20"},
	}
	switch c.Durability {
	case Prod:
		// The defaults for commits, spelled out, since every figure depends on them. The log
		// has room, so that a benchmark measures commits and not the checkpoints of a small
		// max_wal_size.
		s = append(s, [][2]string{
			{"fsync", "on"},
			{"synchronous_commit", "on"},
			{"full_page_writes", "on"},
			{"wal_sync_method", "fdatasync"},
			{"wal_buffers", "16MB"},
			{"max_wal_size", "4GB"},
			{"checkpoint_timeout", "15min"},
			{"checkpoint_completion_target", "0.9"},
		}...)
	case Fast:
		s = append(s, [][2]string{
			{"fsync", "off"},
			{"synchronous_commit", "off"},
			{"full_page_writes", "off"},
			{"max_wal_size", "4GB"},
			{"checkpoint_timeout", "1h"},
		}...)
	}
	if (c.FsyncLatency > 0 || c.CountFlushes) && p.bin.version.atLeast(14, 0) {
		// Recovery flushes all thousand files of the data directory one by one. A real slow
		// disk takes no time for unmodified files; the shim would.
		s = append(s, [2]string{"recovery_init_sync_method", "syncfs"})
	}
	if !roomForSegments(sharedMemoryDir) {
		s = append(s, [2]string{"dynamic_shared_memory_type", "mmap"}) // files in the data directory
	}
	if p.tls != nil {
		s = append(s, [][2]string{
			{"ssl", "on"},
			{"ssl_ca_file", p.tls.caCert},
			{"ssl_cert_file", p.tls.server.Cert},
			{"ssl_key_file", p.tls.server.Key},
		}...)
	}
	s = append(s, variant(EnvPostgresSettings)...)
	for _, name := range slices.Sorted(maps.Keys(c.Settings)) {
		s = append(s, [2]string{name, c.Settings[name]})
	}
	return s
}

// writeConf replaces postgresql.conf.
func (p *Postgres) writeConf() error {
	var b bytes.Buffer
	for _, s := range p.settings() {
		fmt.Fprintf(&b, "%s = %s\n", s[0], quoteSetting(s[1]))
	}
	return p.writeData("postgresql.conf", b.Bytes())
}

// quoteSetting quotes a value for postgresql.conf.
func quoteSetting(v string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`, "\n", `\n`).Replace(v) + "'"
}

// writeHBA replaces pg_hba.conf.
func (p *Postgres) writeHBA() error {
	kind, option := "host", ""
	switch p.cfg.TLS {
	case TLSRequired:
		kind = "hostssl"
	case TLSMutual:
		kind, option = "hostssl", " clientcert=verify-full"
	case TLSOffered, TLSOff, TLSOptional:
	}
	var b bytes.Buffer
	for _, db := range []string{"all", "replication"} { // "all" does not include replication
		fmt.Fprintf(&b, "local %s all %s\n", db, p.cfg.Auth)
		fmt.Fprintf(&b, "%s %s all 127.0.0.1/32 %s%s\n", kind, db, p.cfg.Auth, option)
	}
	return p.writeData("pg_hba.conf", b.Bytes())
}

func (p *Postgres) writeData(name string, content []byte) error {
	path := filepath.Join(p.data, name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := p.as.chown(path); err != nil {
		return fmt.Errorf("hand over %s: %w", name, err)
	}
	return nil
}

// awaitPostgres waits until the server with a socket in sockDir accepts sessions. An open
// socket is not enough: while it starts, or recovers from a crash, the server answers with an
// error. The TCP port would not do either: another server may have taken it.
func awaitPostgres(ctx context.Context, proc *process, sockDir string, port int) error {
	path := fmt.Sprintf("%s/.s.PGSQL.%d", sockDir, port)
	return awaitReady(ctx, proc, func() bool { return probePostgres(path) == nil })
}

var errStartingUp = errors.New("server is starting up")

// probePostgres requests a session and reads the first answer. Everything except "starting up"
// means that the server works, even a refusal: the probe has no password and no TLS.
func probePostgres(socket string) error {
	conn, err := net.DialTimeout("unix", socket, time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write(startupPacket(superuser, "postgres")); err != nil {
		return err
	}
	if err := readFirstAnswer(conn); err != nil {
		return err
	}
	// Send Terminate, and read to the end: closing a connection with unread bytes resets it,
	// and the server would log that. The server has proved that it works, so errors no longer
	// matter.
	_, _ = conn.Write([]byte{'X', 0, 0, 0, 4})
	_, _ = io.Copy(io.Discard, conn)
	return nil
}

// startupPacket is the first message of protocol 3.0: length, version, names and values each
// terminated by a zero byte, and a final zero byte.
func startupPacket(user, db string) []byte {
	b := binary.BigEndian.AppendUint32(make([]byte, 4, 64), 3<<16)
	b = append(b, "user\x00"+user+"\x00database\x00"+db+"\x00\x00"...)
	binary.BigEndian.PutUint32(b, uint32(len(b)))
	return b
}

// maxProbeMessage limits the error message that a probe reads.
const maxProbeMessage = 16 << 10

func readFirstAnswer(r io.Reader) error {
	var head [5]byte // type, then the length including itself
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n < 4 || n > maxProbeMessage {
		return fmt.Errorf("answer of %d bytes", n)
	}
	switch head[0] {
	case 'R':
		return nil
	case 'E':
		body := make([]byte, n-4)
		if _, err := io.ReadFull(r, body); err != nil {
			return err
		}
		// Field C is the error's code; 57P03 is cannot_connect_now.
		if bytes.Contains(body, []byte("C57P03\x00")) {
			return errStartingUp
		}
		return nil
	}
	return fmt.Errorf("answer of unknown type %q", head[0])
}
