// Locks and unlocks one key by etcd's own concurrency.Mutex in so many goroutines, each with a
// session of its own, for so many seconds; prints how often that was done.
// Arguments: endpoint, goroutines, seconds.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

func main() {
	goroutines, err := strconv.Atoi(os.Args[2])
	check(err)
	seconds, err := strconv.ParseFloat(os.Args[3], 64)
	check(err)
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{os.Args[1]}})
	check(err)
	defer client.Close()

	var done atomic.Int64
	var workers, opened sync.WaitGroup
	begin := make(chan time.Time)
	for i := 0; i < goroutines; i++ {
		workers.Add(1)
		opened.Add(1)
		go func() {
			defer workers.Done()
			session, err := concurrency.NewSession(client)
			check(err)
			defer session.Close()
			mutex := concurrency.NewMutex(session, "/hot-go")
			opened.Done()
			end := <-begin
			for time.Now().Before(end) {
				check(mutex.Lock(context.Background()))
				if time.Now().Before(end) {
					done.Add(1)
				}
				check(mutex.Unlock(context.Background()))
			}
		}()
	}
	opened.Wait()
	end := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	for i := 0; i < goroutines; i++ {
		begin <- end
	}
	workers.Wait()
	fmt.Println(done.Load())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
