package mywire

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/subtle"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"

	"filippo.io/edwards25519"
)

// Two plugins share one scheme. The server stores stage2 = H(H(password)); the client proves
// that it knows stage1 = H(password), which is never sent:
//
//	mysql_native_password   stage1 XOR SHA1(salt + stage2)
//	caching_sha2_password   stage1 XOR SHA256(stage2 + salt)
//
// Anyone who knows stage2 and sees the proof learns stage1, and stage1 suffices for a login:
// this is how weir can log in to the server as its client.

func xor(dst, a, b []byte) []byte {
	subtle.XORBytes(dst, a, b)
	return dst
}

func nativeMask(stage2, salt []byte) []byte {
	h := sha1.New()
	h.Write(salt)
	h.Write(stage2)
	return h.Sum(nil)
}

func sha2Mask(stage2, salt []byte) []byte {
	h := sha256.New()
	h.Write(stage2)
	h.Write(salt)
	return h.Sum(nil)
}

// nativeProof returns the answer of mysql_native_password to salt.
func nativeProof(stage1, salt []byte) []byte {
	stage2 := sha1.Sum(stage1)
	return xor(make([]byte, sha1.Size), stage1, nativeMask(stage2[:], salt))
}

// nativeStage1 returns the stage1 of a proof, or nil if the proof is wrong.
func nativeStage1(proof, salt, stage2 []byte) []byte {
	if len(proof) != sha1.Size {
		return nil
	}
	stage1 := xor(make([]byte, sha1.Size), proof, nativeMask(stage2, salt))
	if got := sha1.Sum(stage1); subtle.ConstantTimeCompare(got[:], stage2) != 1 {
		return nil
	}
	return stage1
}

// sha2Proof returns the first answer of caching_sha2_password to salt.
func sha2Proof(stage1, salt []byte) []byte {
	stage2 := sha256.Sum256(stage1)
	return xor(make([]byte, sha256.Size), stage1, sha2Mask(stage2[:], salt))
}

// sha2Stage1 returns the stage1 of a proof, or nil if the proof is wrong.
func sha2Stage1(proof, salt, stage2 []byte) []byte {
	if len(proof) != sha256.Size {
		return nil
	}
	stage1 := xor(make([]byte, sha256.Size), proof, sha2Mask(stage2, salt))
	if got := sha256.Sum256(stage1); subtle.ConstantTimeCompare(got[:], stage2) != 1 {
		return nil
	}
	return stage1
}

// newSalt makes a challenge. Its bytes are 7-bit, for old clients that take it for text, and
// none is NUL or "$", which would end it.
func newSalt() []byte {
	salt := make([]byte, saltLen)
	_, _ = rand.Read(salt) // never fails, since Go 1.24
	for i, b := range salt {
		if b &= 0x7f; b == 0 || b == '$' {
			b++
		}
		salt[i] = b
	}
	return salt
}

// mask hides a password from anyone who knows the RSA key but not the salt: its text and a NUL,
// XORed with the repeated salt.
func mask(text, salt []byte) []byte {
	out := make([]byte, len(text))
	for i := range text {
		out[i] = text[i] ^ salt[i%len(salt)]
	}
	return out
}

// encryptPassword encrypts a password for the holder of a server's key.
func encryptPassword(password string, salt []byte, key *rsa.PublicKey) ([]byte, error) {
	if len(salt) == 0 {
		return nil, fmt.Errorf("encrypt password without a salt: %w", ErrMalformed)
	}
	out, err := rsa.EncryptOAEP(sha1.New(), rand.Reader, key, mask(append([]byte(password), 0), salt), nil)
	if err != nil {
		return nil, fmt.Errorf("encrypt password: %w", err)
	}
	return out, nil
}

// decryptPassword is the reverse of encryptPassword.
func decryptPassword(cipher, salt []byte, key *rsa.PrivateKey) (string, error) {
	masked, err := rsa.DecryptOAEP(sha1.New(), nil, key, cipher, nil)
	if err != nil {
		return "", fmt.Errorf("decrypt password: %w", err)
	}
	return clearPassword(mask(masked, salt))
}

// clearPassword parses a password that ends in a NUL.
func clearPassword(b []byte) (string, error) {
	text, rest, ok := cstring(b)
	if !ok || len(rest) != 0 {
		return "", fmt.Errorf("password does not end in a NUL: %w", ErrMalformed)
	}
	return string(text), nil
}

// parseRSAKey reads the key that a server sends in PEM.
func parseRSAKey(text []byte) (*rsa.PublicKey, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("the server's RSA key is not PEM")
	}
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("parse the server's RSA key: %w", err)
	}
	if key, ok := key.(*rsa.PublicKey); ok {
		return key, nil
	}
	return nil, fmt.Errorf("the server's key is a %T, not of RSA", key)
}

func marshalRSAKey(key *rsa.PublicKey) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return nil, fmt.Errorf("marshal RSA key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), nil
}

// ed25519Proof returns the answer of client_ed25519 to salt: an Ed25519 signature (RFC 8032)
// whose secret is a password of any length, while crypto/ed25519 requires a seed of 32 bytes.
func ed25519Proof(password string, salt []byte) ([]byte, error) {
	h := sha512.Sum512([]byte(password))
	s, err := edwards25519.NewScalar().SetBytesWithClamping(h[:32])
	if err != nil {
		return nil, fmt.Errorf("ed25519 scalar: %w", err)
	}
	public := new(edwards25519.Point).ScalarBaseMult(s).Bytes()
	r, err := hashScalar(h[32:], salt)
	if err != nil {
		return nil, err
	}
	nonce := new(edwards25519.Point).ScalarBaseMult(r).Bytes()
	k, err := hashScalar(nonce, public, salt)
	if err != nil {
		return nil, err
	}
	return append(nonce, edwards25519.NewScalar().MultiplyAdd(k, s, r).Bytes()...), nil
}

func hashScalar(parts ...[]byte) (*edwards25519.Scalar, error) {
	h := sha512.New()
	for _, p := range parts {
		h.Write(p)
	}
	s, err := edwards25519.NewScalar().SetUniformBytes(h.Sum(nil))
	if err != nil {
		return nil, fmt.Errorf("ed25519 scalar: %w", err)
	}
	return s, nil
}
