// net/http on one stack: a server and its clients, over connections that are kept and over short ones, TLS, timers, thousands of
// goroutines, and an orderly end by SIGTERM. Prints what must be the same on every stack.
//
//	web                      all of that in one process
//	web serve ADDRESS        serves until it gets SIGTERM
//	web fetch URL            prints what is there
//	web resolve SERVER NAME  asks a server for the addresses of a name, by Go's own resolver
package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

func must[T any](value T, err error) T {
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	return value
}

func certificate() tls.Certificate {
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template := x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"localhost"}, NotAfter: time.Now().Add(time.Hour)}
	der := must(x509.CreateCertificate(rand.Reader, &template, &template, &key.PublicKey, key))
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func fetch(client *http.Client, url string) error {
	answer, err := client.Get(url)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && !strings.HasPrefix(string(text), "hello") {
		err = fmt.Errorf("odd answer %q", text)
	}
	return err
}

// Returns how many of the requests of many goroutines were answered.
func crowd(client *http.Client, url string, goroutines, each int) int64 {
	var good atomic.Int64
	var all sync.WaitGroup
	for g := 0; g < goroutines; g++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for n := 0; n < each; n++ {
				if err := fetch(client, url); err == nil {
					good.Add(1)
				} else {
					fmt.Println(err)
				}
			}
		}()
	}
	all.Wait()
	return good.Load()
}

// Keeps all threads at computations that have to be preempted by signals.
func busy(until *atomic.Bool) *sync.WaitGroup {
	var all sync.WaitGroup
	for n := 0; n < runtime.GOMAXPROCS(0); n++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for n := 0; !until.Load(); n++ {
				for i := 0; i < 1000000; i++ {
					n ^= i
				}
			}
		}()
	}
	return &all
}

// Answers that a server sends, which is asked from elsewhere.
func serve(address string) {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	server := &http.Server{Handler: http.FileServer(http.Dir("."))}
	listener := must(net.Listen("tcp", address))
	go func() {
		<-stop
		server.Shutdown(context.Background())
	}()
	fmt.Println(server.Serve(listener))
}

func resolve(server, name string) {
	dial := func(context context.Context, network, address string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(context, network, server)
	}
	resolver := net.Resolver{PreferGo: true, Dial: dial}
	fmt.Println(must(resolver.LookupHost(context.Background(), name)))
}

func main() {
	if len(os.Args) < 2 {
		everything()
		return
	}
	switch os.Args[1] {
	case "child":
		fmt.Println("child", os.Args[2])
	case "serve":
		serve(os.Args[2])
	case "fetch":
		answer := must(http.Get(os.Args[2]))
		must(io.Copy(os.Stdout, answer.Body))
	case "resolve":
		resolve(os.Args[2], os.Args[3])
	}
}

func everything() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	begun := make(chan bool)
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "hello %s\n", r.Proto) })
	mux.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) {
		begun <- true
		time.Sleep(200 * time.Millisecond)
		fmt.Fprintln(w, "hello at last")
	})
	server := &http.Server{Handler: mux}
	plain := must(net.Listen("tcp", "127.0.0.1:0"))
	secure := must(net.Listen("tcp", "127.0.0.1:0"))
	var served sync.WaitGroup
	served.Add(2)
	go func() { defer served.Done(); fmt.Println("plain:", server.Serve(plain)) }()
	secured := &http.Server{Handler: mux, TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate()}}}
	go func() { defer served.Done(); secured.ServeTLS(secure, "", "") }()

	url := "http://" + plain.Addr().String() + "/"
	kept := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 50}, Timeout: 20 * time.Second}
	short := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 20 * time.Second}
	overTLS := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, Timeout: 20 * time.Second}
	fmt.Println("kept alive:", crowd(kept, url, 50, 20))
	fmt.Println("short:", crowd(short, url, 20, 10))
	fmt.Println("tls:", crowd(overTLS, "https://"+secure.Addr().String()+"/", 5, 4))

	var until atomic.Bool
	all := busy(&until)
	fmt.Println("preempted:", crowd(kept, url, 10, 5))
	until.Store(true)
	all.Wait()

	var timers atomic.Int64
	var sleepers sync.WaitGroup
	for n := 0; n < 2000; n++ {
		sleepers.Add(1)
		go func(n int) {
			defer sleepers.Done()
			time.Sleep(time.Duration(n%20) * time.Millisecond)
			timers.Add(1)
		}(n)
	}
	sleepers.Wait()
	fmt.Println("timers:", timers.Load())

	blocked := must(net.Listen("tcp", "127.0.0.1:0"))
	connection := must(net.Dial("tcp", blocked.Addr().String()))
	connection.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	_, err := connection.Read(make([]byte, 1))
	fmt.Println("deadline:", err.(net.Error).Timeout())
	// Who collects garbage closes listeners that nothing names any more, and so resets the connection.
	runtime.KeepAlive(blocked)
	_, err = net.DialTimeout("tcp", "127.0.0.1:1", time.Second)
	fmt.Println("refused:", strings.HasSuffix(err.Error(), "connection refused"))

	packets := must(net.ListenPacket("udp", "127.0.0.1:0"))
	sender := must(net.Dial("udp", packets.LocalAddr().String()))
	must(sender.Write([]byte("datagram")))
	buffer := make([]byte, 100)
	packets.SetReadDeadline(time.Now().Add(5 * time.Second))
	n, from, err := packets.ReadFrom(buffer)
	fmt.Println("datagram:", string(buffer[:n]), err, from.String() == sender.LocalAddr().String())

	output, err := exec.Command(must(os.Executable()), "child", "of Go").CombinedOutput()
	fmt.Printf("%s%v\n", output, err)
	_, err = exec.Command("/no/such/program").CombinedOutput()
	fmt.Println(err)

	last := make(chan error)
	go func() { last <- fetch(short, url+"slow") }()
	<-begun
	syscall.Kill(os.Getpid(), syscall.SIGTERM)
	fmt.Println("signal:", <-stop)
	deadline, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	fmt.Println("shut down:", server.Shutdown(deadline), secured.Shutdown(deadline))
	fmt.Println("last request:", <-last)
	served.Wait()
}
