package lab

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// EnvSlapd names the slapd program.
const EnvSlapd = "WEIR_SLAPD"

var slapdProgram = brokerProgram{
	title: "OpenLDAP", env: EnvSlapd, name: "slapd", late: []string{"/usr/sbin", "/usr/libexec", "/usr/lib/openldap"},
	hint: "apt-get install slapd",
}

// FindLDAP returns the path of slapd: the first of given (if not empty), $WEIR_SLAPD, the PATH,
// /usr/sbin and similar directories. The error is a *NotInstalledError if there is none.
func FindLDAP(given string) (path string, err error) { return slapdProgram.find(given) }

// The names in an LDAP server of the lab. Everything is below LDAPBase, which LDAPManager may
// read, with the password of the configuration; all others can only log in.
const (
	LDAPBase    = "dc=example,dc=net"
	LDAPManager = "cn=manager," + LDAPBase
)

// An LDAPUser is an entry of ou=people, an inetOrgPerson.
type LDAPUser struct {
	UID      string // the entry is uid=UID,ou=people,LDAPBase
	Mail     string // Default: none.
	Password string // Default: none, so that a login is impossible.
}

// LDAP is a running OpenLDAP server (slapd) that belongs to this process. Its methods
// are safe for concurrent use.
type LDAP struct {
	broker
	binary, schema string
	users          []LDAPUser
}

// StartLDAP starts a server with users, which speaks LDAP with StartTLS on one port and LDAPS
// on another, and returns when it answers. cfg.Password is the manager's, by default "weir".
func StartLDAP(ctx context.Context, cfg BrokerConfig, users ...LDAPUser) (*LDAP, error) {
	if cfg.Password == "" {
		cfg.Password = "weir"
	}
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("configure OpenLDAP: %w", err)
	}
	binary, err := FindLDAP(cfg.Program)
	if err != nil {
		return nil, err
	}
	d := &LDAP{binary: binary, users: users}
	for _, dir := range []string{"/etc/ldap/schema", "/etc/openldap/schema", "/usr/local/etc/openldap/schema"} {
		if isFile(filepath.Join(dir, "core.schema")) {
			d.schema = dir
			break
		}
	}
	if d.schema == "" {
		return nil, &NotInstalledError{Server: "OpenLDAP", Looked: []string{"/etc/ldap/schema", "/etc/openldap/schema"}, Hint: slapdProgram.hint}
	}
	if err := d.open(ctx, "OpenLDAP", "openldap", cfg, d.prepare, d.start); err != nil {
		return nil, err
	}
	return d, nil
}

// ldapText matches what fits on a line of LDIF without encoding.
var ldapText = regexp.MustCompile(`^[!-~]([ -~]*[!-~])?$`)

func (d *LDAP) prepare(ctx context.Context) (err error) {
	if d.tls, err = newAuthority(d.dir.path); err != nil {
		return err
	}
	if err := d.tls.issueServer(d.as); err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "dn: %s\nobjectClass: dcObject\nobjectClass: organization\ndc: example\no: Example\n\n", LDAPBase)
	fmt.Fprintf(&b, "dn: ou=people,%s\nobjectClass: organizationalUnit\nou: people\n", LDAPBase)
	for _, u := range d.users {
		// The name may contain characters with a meaning in a DN.
		fmt.Fprintf(&b, "\ndn: uid=%s,ou=people,%s\nobjectClass: inetOrgPerson\nuid: %s\ncn: %s\nsn: %s\n", escapeRDN(u.UID), LDAPBase, u.UID, u.UID, u.UID)
		for name, value := range map[string]string{"mail": u.Mail, "userPassword": u.Password} {
			if value != "" && !ldapText.MatchString(value) {
				return fmt.Errorf("user %q: %s must be printable ASCII", u.UID, name)
			}
			if value != "" {
				fmt.Fprintf(&b, "%s: %s\n", name, value)
			}
		}
	}
	ldif, err := d.write("people.ldif", b.String())
	if err != nil {
		return err
	}
	conf, err := d.write("slapd.conf", d.config())
	if err != nil {
		return err
	}
	_, err = runCommand(ctx, command{path: d.binary, args: []string{"-T", "add", "-f", conf, "-l", ldif}, dir: d.data, as: d.as})
	return err
}

// escapeRDN escapes a value of a distinguished name.
func escapeRDN(s string) string {
	return strings.NewReplacer(`\`, `\\`, ",", `\,`, "+", `\+`, `"`, `\"`, "<", `\<`, ">", `\>`, ";", `\;`, "=", `\=`, "#", `\#`).Replace(s)
}

func (d *LDAP) start(ctx context.Context) error {
	if err := d.choosePorts(1); err != nil {
		return err
	}
	listen := "ldap://" + d.Addr() + " ldaps://" + d.AddrTLS()
	args := []string{"-d", "0", "-f", filepath.Join(d.conf, "slapd.conf"), "-h", listen}
	return d.serve(ctx, d.binary, args, func(ctx context.Context, addr string) error {
		conn, err := dialProbe(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		defer conn.Close()
		// An anonymous bind, and its answer.
		if _, err := conn.Write([]byte("\x30\x0c\x02\x01\x01\x60\x07\x02\x01\x03\x04\x00\x80\x00")); err != nil {
			return err
		}
		answer := make([]byte, 6)
		if _, err := conn.Read(answer); err != nil {
			return err
		}
		if answer[0] != 0x30 {
			return errors.New("it speaks no LDAP")
		}
		return nil
	})
}

func (d *LDAP) config() string {
	var b strings.Builder
	for _, name := range []string{"core", "cosine", "inetorgperson"} {
		fmt.Fprintf(&b, "include %s/%s.schema\n", d.schema, name)
	}
	fmt.Fprintf(&b, "TLSCACertificateFile %s\nTLSCertificateFile %s\nTLSCertificateKeyFile %s\n", d.tls.caCert, d.tls.server.Cert, d.tls.server.Key)
	for name, value := range d.cfg.Settings {
		fmt.Fprintf(&b, "%s %s\n", name, value)
	}
	fmt.Fprintf(&b, "access to attrs=userPassword by anonymous auth by * none\naccess to * by * none\n")
	fmt.Fprintf(&b, "database ldif\ndirectory %s\nsuffix %s\nrootdn %s\nrootpw %s\n", d.data, LDAPBase, LDAPManager, d.cfg.Password)
	return b.String()
}

// AddrTLS is the address for LDAPS.
func (d *LDAP) AddrTLS() string { return d.Host() + ":" + strconv.Itoa(d.aux[0]) }

// PortTLS is the port for LDAPS.
func (d *LDAP) PortTLS() int { return d.aux[0] }
