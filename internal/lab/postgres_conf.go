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

// Auth is how a server's clients prove who they are; the value is the method's
// name in pg_hba.conf.
type Auth string

// The methods that the lab can set up.
const (
	Trust    Auth = "trust"
	Password Auth = "password" // in clear text
	MD5      Auth = "md5"
	SCRAM    Auth = "scram-sha-256"
)

// TLSMode says which connections over TCP a server accepts.
type TLSMode int

const (
	// TLSOffered: encrypted or in clear, as the client likes. The server's own
	// DSN asks for a connection in clear.
	TLSOffered TLSMode = iota
	// TLSOff: in clear only.
	TLSOff
	// TLSOptional: encrypted or in clear, as the client likes. The server's own
	// DSN asks for a verified connection.
	TLSOptional
	// TLSRequired: encrypted only.
	TLSRequired
	// TLSMutual: encrypted, from clients whose certificate names their role.
	TLSMutual
)

// ParseTLSMode reads a mode's name: offered, off, optional, required or mutual.
func ParseTLSMode(s string) (TLSMode, error) {
	for mode, name := range []string{"offered", "off", "optional", "required", "mutual"} {
		if s == name {
			return TLSMode(mode), nil
		}
	}
	return 0, fmt.Errorf("TLS mode %q: must be offered, off, optional, required or mutual", s)
}

// inDSN reports whether a server's own DSN asks for TLS.
func (m TLSMode) inDSN() bool { return m != TLSOffered && m != TLSOff }

// demanded reports whether the server refuses connections in clear.
func (m TLSMode) demanded() bool { return m == TLSRequired || m == TLSMutual }

func randomPassword() string { return rand.Text()[:16] }

var settingName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?$`)

// settings returns the server's configuration in the order in which it is
// written: a later line wins.
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
		{"log_checkpoints", "off"}, // the log is for what goes wrong
		// As in most of the world, and half an hour off, so that what takes UTC
		// for granted is noticed.
		{"timezone", "Asia/Kolkata"},
		{"wal_level", "logical"},
		{"max_wal_senders", "20"},
		{"max_replication_slots", "20"},
	}
	switch c.Durability {
	case Prod:
		// The defaults for a commit's path, spelled out: this is what every
		// figure rests on. Room for the log, so that a benchmark measures
		// commits and not the checkpoints of a tiny max_wal_size.
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
		// Recovery flushes all thousand files of the data directory one by one.
		// A real slow disk does not charge for clean files; the shim would.
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

// quoteSetting quotes a value as postgresql.conf reads it.
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
	for _, db := range []string{"all", "replication"} { // "all" leaves out replication
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
	if err := p.as.own(path); err != nil {
		return fmt.Errorf("hand over %s: %w", name, err)
	}
	return nil
}

// awaitPostgres returns when the server with a socket in sockDir speaks
// PostgreSQL's protocol and takes connections. An open socket is not enough:
// while it starts, or recovers from a crash, the server answers with an error.
// Nor would the TCP port do: another server may have been faster to take it.
func awaitPostgres(ctx context.Context, proc *process, sockDir string, port int) error {
	path := fmt.Sprintf("%s/.s.PGSQL.%d", sockDir, port)
	return awaitReady(ctx, proc, func() bool { return probePostgres(path) == nil })
}

var errStartingUp = errors.New("server is starting up")

// probePostgres asks for a session and looks at the first answer. Anything but
// "starting up" is the answer of a server that works, a refusal included: the
// probe has no password and speaks no TLS.
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
	// Take leave, and read to the end: a connection that is closed with bytes
	// unread is reset, and the server's log would complain of it. The server
	// has proved itself already, so errors no longer matter.
	_, _ = conn.Write([]byte{'X', 0, 0, 0, 4})
	_, _ = io.Copy(io.Discard, conn)
	return nil
}

// startupPacket is the first message of protocol 3.0: length, version, names
// and values each ended by a zero byte, and one more.
func startupPacket(user, db string) []byte {
	b := binary.BigEndian.AppendUint32(make([]byte, 4, 64), 3<<16)
	b = append(b, "user\x00"+user+"\x00database\x00"+db+"\x00\x00"...)
	binary.BigEndian.PutUint32(b, uint32(len(b)))
	return b
}

// maxProbeMessage bounds the error message that a probe reads.
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
