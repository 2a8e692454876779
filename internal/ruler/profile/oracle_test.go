package profile

import (
	"encoding/binary"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// tnsListener is as much of an Oracle listener as the tests need: it reads the
// connect packet of each client and answers with one packet, or not at all.
func tnsListener(t *testing.T, answer func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				var head [8]byte // length, checksum, type, flags, checksum
				if _, err := io.ReadFull(c, head[:]); err != nil {
					return
				}
				rest := int64(binary.BigEndian.Uint16(head[:2])) - int64(len(head))
				if _, err := io.CopyN(io.Discard, c, rest); err != nil {
					return
				}
				answer(c)
			}()
		}
	}()
	return l.Addr().String()
}

// refuse answers with a TNS packet of type 4: the listener does not know the
// service.
func refuse(c net.Conn) {
	text := "(DESCRIPTION=(TMP=)(VSNNUM=0)(ERR=12514)(ERROR_STACK=(ERROR=(CODE=12514)(EMFI=4))))"
	packet := make([]byte, 12, 12+len(text))
	packet[4] = 4 // refuse
	packet[8], packet[9] = 34, 0
	binary.BigEndian.PutUint16(packet[10:], uint16(len(text)))
	packet = append(packet, text...)
	binary.BigEndian.PutUint16(packet, uint16(len(packet)))
	_, _ = c.Write(packet)
}

// The driver has not been run against a live server. Its errors have: each says
// what happened, in time, and without the password.
func TestOracleErrors(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer func(net.Conn)
		query  string
		want   string
		class  string
	}{
		{"the listener refuses", refuse, "", "ORA-12514", "ORA-12514"},
		{"the listener hangs up", func(net.Conn) {}, "", "", "connection lost"},
		{"the listener is silent", func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }, "?CONNECTION+TIMEOUT=1&TIMEOUT=1", "", "timeout"},
	} {
		target, err := ParseTarget("oracle://scott:tiger@" + tnsListener(t, tt.answer) + "/FREEPDB1" + tt.query)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		err = target.Connect(t.Context())
		if err == nil {
			t.Fatalf("%s: connected", tt.name)
		}
		if !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "tiger") || classify(err) != tt.class {
			t.Errorf("%s: %v (class %s), want %q of class %s", tt.name, err, classify(err), tt.want, tt.class)
		}
		if d := time.Since(began); d > 30*time.Second {
			t.Errorf("%s: known after %v", tt.name, d)
		}
	}
}

// Segments that are not verified say so, and verified ones say nothing.
func TestVerification(t *testing.T) {
	for _, e := range []string{EnginePostgres, EngineMariaDB, EngineMySQL, EngineSleep} {
		if v := Verification(e); v != "" {
			t.Errorf("%s: %q", e, v)
		}
	}
	if v := Verification(EngineOracle); !strings.Contains(v, "not run against a live server") {
		t.Errorf("oracle: %q", v)
	}
}

func TestOracleStatements(t *testing.T) {
	target := &Target{Engine: EngineOracle}
	if got := target.tableName("weir_profile_1", "accounts"); got != "weir_profile_1_accounts" {
		t.Errorf("table %q", got)
	}
	text := strings.NewReplacer("{dual}", target.dual(), "{begin}", target.beginStatement()).Replace("{begin}; SELECT 1{dual}; COMMIT")
	s, err := ParseScript(EngineOracle, text)
	if err != nil || len(s.statements) != 2 || s.statements[0].text != "SELECT 1 FROM dual" {
		t.Errorf("%+v, %v", s, err)
	}
}
